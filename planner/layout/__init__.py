"""A strategy's choices, and the layouts of all tensors that follow from them.

May import: planner/access/declare, planner/devices, planner/errors, planner/layers, planner/model,
planner/placing/problem, planner/region.
"""

__all__ = ["choices", "partial_sums", "propagate", "strategy"]
