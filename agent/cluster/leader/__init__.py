"""The leader's decisions: when to plan, when to cut over, and which variants and contingency plans there are.

May import: agent/cluster/state, agent/engines, agent/wire, planner/errors, planner/figures, planner/plans.
"""

__all__ = ["controller", "replan_policy", "rollout_state", "status"]
