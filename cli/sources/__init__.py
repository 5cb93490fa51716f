"""Where models come from that users deploy: files, folders and URLs, the digests by which the cluster knows them, models
with weights of few bits that are made of them, and descriptions of their operators; and graphs of costs.

May import: agent/gateway, agent/planwork, agent/text, agent/wire, cli/output, cli/tensors, client, planner/errors,
planner/figures, planner/model, planner/model/shapes, planner/placing/problem, planner/tdl.
"""

__all__ = ["download", "model", "operators", "quantising", "workload"]
