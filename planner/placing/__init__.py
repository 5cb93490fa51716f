"""Whole tasks on machines, decided from a graph with costs alone. It could be a package of its own.

May import: planner/errors, planner/placing/problem.
"""

__all__ = ["chain_partition", "registry"]
