"""Where models come from that users deploy: files, folders and URLs, and the digests by which the cluster knows them.

May import: agent/planwork, agent/text, agent/wire, cli/output, client, planner/errors, planner/figures,
planner/model.
"""

__all__ = ["download", "model"]
