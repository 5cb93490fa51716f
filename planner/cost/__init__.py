"""Predicted seconds, work and bytes: of an operator, of a chain of operators, and of a layer. The next level, of a
configuration over several devices, is planner/layerwise/configuration_cost.py.

May import: planner/access/declare, planner/devices, planner/errors, planner/layers, planner/layout, planner/model,
planner/plans, planner/region.
"""

__all__ = ["chain_cost", "cost", "layer_cost", "memory", "operator_cost", "work"]
