"""What strategies share: a problem with all that is known about it, candidates, moves between them, and bounds.

May import: planner/cost, planner/devices, planner/errors, planner/layers, planner/layout, planner/lowering,
planner/model, planner/plans, planner/region, planner/simulation.
"""

__all__ = [
    "checkpoint",
    "choose_borders",
    "choose_detours",
    "choose_relays",
    "dense_pairs",
    "force_axis",
    "lower_bound",
    "moves",
    "openings",
    "recipe",
    "refine",
    "study",
]
