"""Reports on a plan for people and programs: why it is as it is, the devices' shares, and the JSON document.

May import: planner/devices, planner/figures, planner/layers, planner/layout, planner/model, planner/plans, planner/region,
planner/search, planner/simulation, planner/strategies.
"""

__all__ = ["advice", "document", "drawing", "engines", "explain", "sentences", "shares"]
