"""The worker processes in which models run, one for each deployment, and the agent's side of them.

May import: agent/cluster/state, agent/engines, agent/execution, agent/execution/compile, agent/execution/runtime,
agent/host, agent/storage, agent/wire, planner/errors, planner/plans, planner/region.
"""

__all__ = ["device_workers", "engine_watch", "orders"]
