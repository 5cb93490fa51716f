"""Placers that decide at once (list schedulers, cuts, partitions and rules of thumb), climbing from the best of
them, and policies that were trained.

May import: planner/errors, planner/figures, planner/placing, planner/placing/engine, planner/placing/guided,
planner/placing/problem.
"""

__all__ = ["best", "best_start", "heft"]
