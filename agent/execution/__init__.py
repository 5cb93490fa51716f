"""Execution of this device's part of a plan: its schedule, the copies that it makes, and its ONNX Runtime sessions.

May import: agent/cluster/state, agent/engines, agent/host, agent/trace, agent/wire, planner/errors, planner/figures,
planner/plans, planner/region.
"""

__all__ = [
    "carried_states",
    "copies",
    "counters",
    "executor",
    "nchwc_array",
    "nchwc_choice",
    "outgoing",
    "places",
    "prepared",
    "schedule",
    "sequences",
    "sessions",
    "tasks",
]
