"""Where models come from that users deploy: files, folders and URLs, and the digests by which the cluster knows them.

May import: agent/planwork, agent/text, agent/wire, cli/options, cli/output, planner/errors, planner/figures,
planner/json_text, planner/model.
"""

__all__ = ["download", "files", "model"]
