"""Child processes that compute plans and work on models, which may be strangers'.

May import: agent/cluster/state, agent/engines, agent/host, agent/storage, agent/text, agent/verify, agent/wire,
planner/devices, planner/errors, planner/figures, planner/layout, planner/model, planner/planner, planner/plans,
planner/report, planner/search, planner/simulation, planner/strategies.
"""

__all__ = ["model_process", "plan_process"]
