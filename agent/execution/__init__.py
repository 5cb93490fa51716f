"""Execution of this device's part of a plan: its schedule, the requests that follow it, the copies that it
makes, and the states that it keeps.

May import: agent/cluster/state, agent/trace, agent/wire, planner/errors, planner/figures, planner/plans, planner/region.
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
    "tasks",
]
