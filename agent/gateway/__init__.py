"""What every door to the gateway's inference shares: who may ask, how much and how often, the rules of the Open Inference
Protocol, its operations, their errors and their metrics. HTTP and gRPC are encodings in front of it.

May import: agent/api, agent/chronicle, agent/host, agent/trace, agent/wire, planner/errors, planner/plans.
"""

__all__ = [
    "access",
    "admission",
    "gateway",
    "inference",
    "intake",
    "limits",
    "metrics",
    "oip",
    "oip_elements",
    "oip_models",
    "rate_limit",
    "statuses",
]
