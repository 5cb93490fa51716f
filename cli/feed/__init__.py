"""`edgepart feed`: streams from cameras, MQTT topics and folders into a deployment, and the answers to a file or a topic.

frames.py decides which frame is sent next, and which are dropped; the other modules are doors to sources, answers and the
cluster.

May import: agent/api, agent/mqtt, cli/options, cli/output, cli/query, cli/tensors, client, planner/errors,
planner/figures.
"""

__all__ = ["command"]
