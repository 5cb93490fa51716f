"""Requests of this gateway: their state machine, what carries it out, and the plans that are loaded.

May import: agent/cluster/core, agent/cluster/leader, agent/cluster/state, agent/execution, agent/trace, agent/wire,
planner/errors, planner/plans, planner/region.
"""

__all__ = ["loaded_plans", "requester", "shape_routing"]
