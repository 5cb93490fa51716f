"""Placers that decide at once: list schedulers, cuts, partitions and rules of thumb.

May import: planner/errors, planner/figures, planner/placing, planner/placing/engine, planner/placing/problem.
"""

__all__ = ["best", "heft"]
