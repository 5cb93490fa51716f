"""What placers share: dispatching by ranks, ports of machines, memory limits, and what a placement is worth.

May import: planner/errors, planner/placing/problem.
"""

__all__ = ["compact_schedule", "dispatch", "evaluate", "fit_memory", "load", "ortools", "ports", "speeds"]
