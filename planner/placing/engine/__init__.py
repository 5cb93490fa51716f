"""Parts that placers share: schedules by ranks, also on arrays and compiled; ports of machines, memory limits, the
value of a placement, contraction of large graphs, and climbing.

May import: planner/errors, planner/placing/problem.
"""

__all__ = [
    "batched_dispatch",
    "coarse_workload",
    "compact_schedule",
    "contract",
    "dispatch",
    "evaluate",
    "fit_memory",
    "flat_serial",
    "flat_workload",
    "judge",
    "load",
    "local_search",
    "ortools",
    "ports",
    "speeds",
]
