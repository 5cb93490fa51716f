"""What HTTP asks of the agent: the Protocol `Node`, and what implements it.

May import: agent/cluster/core, agent/cluster/leader, agent/cluster/membership, agent/cluster/state, agent/doctor,
agent/measure, agent/serving, agent/storage, agent/wire, planner/devices, planner/errors, planner/plans,
planner/report.
"""

__all__ = ["device_choice", "node", "progress", "protocol"]
