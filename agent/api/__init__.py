"""The interface between HTTP and the agent: the Protocol `Node`, and its implementation.

May import: agent/chronicle, agent/cluster/core, agent/cluster/leader, agent/cluster/membership, agent/cluster/state,
agent/doctor, agent/engines, agent/measure, agent/serving, agent/storage, agent/text, agent/wire, planner/devices,
planner/errors, planner/plans, planner/report.
"""

__all__ = [
    "candidate_texts",
    "deployment_name",
    "device_choice",
    "inference_request",
    "model_card",
    "node",
    "node_parts",
    "notices",
    "progress",
    "protocol",
    "stages",
    "text_deployments",
]
