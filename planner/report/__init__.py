"""What a plan says of itself: why it is what it is, its shares, and the JSON document.

May import: planner/devices, planner/figures, planner/layout, planner/model, planner/plans, planner/region,
planner/search, planner/simulation, planner/strategies.
"""

__all__ = ["document", "explain", "sentences", "shares"]
