"""Coarsening: which operators stay together, whatever a strategy chooses.

May import: planner/access, planner/access/declare, planner/model, planner/region.
"""

__all__ = ["chains", "coarsen", "runtime_fusion", "search_nodes"]
