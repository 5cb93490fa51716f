"""Parts that all placers share: dispatching by ranks, ports of machines, memory limits, and the value of a placement.

May import: planner/errors, planner/placing/problem.
"""

__all__ = ["compact_schedule", "dispatch", "evaluate", "fit_memory", "load", "ortools", "ports", "speeds"]
