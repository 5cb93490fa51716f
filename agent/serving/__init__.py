"""Requests of this gateway: their state machine, the requester that carries it out, and the plans loaded on this device.

May import: agent/cluster/core, agent/cluster/leader, agent/cluster/state, agent/execution, agent/trace, agent/wire,
planner/errors, planner/plans, planner/region.
"""

__all__ = [
    "active_plan",
    "candidate_figures",
    "continued_sequences",
    "gathering",
    "loaded_plans",
    "request_gatherer",
    "requester",
    "resumption",
    "sequences",
    "shape_routing",
    "state_carrier",
    "state_exchange",
]
