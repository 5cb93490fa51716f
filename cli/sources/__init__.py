"""Where models come from that users deploy: files, folders and URLs, the digests by which the cluster knows them, and
models with weights of few bits that are made of them.

May import: agent/gateway, agent/planwork, agent/text, agent/wire, cli/output, cli/tensors, client, planner/errors,
planner/figures, planner/model.
"""

__all__ = ["download", "model", "quantising"]
