"""Costs of layers under configurations over several devices, the cost tables of OptCNN and Tofu that follow, and the
exact minimum over a whole model.

May import: planner/access/declare, planner/cost, planner/devices, planner/layers, planner/layout, planner/plans,
planner/region, planner/search.
"""

__all__ = ["byte_costs", "configuration_cost", "configurations", "elimination", "halving", "time_costs"]
