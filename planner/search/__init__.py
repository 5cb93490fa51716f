"""Parts that strategies share: knowledge about a problem, candidates and their scores, moves between them, and bounds.

May import: planner/cost, planner/devices, planner/errors, planner/figures, planner/layers, planner/layout,
planner/lowering, planner/model, planner/plans, planner/region, planner/simulation, planner/vocabulary.
"""

__all__ = [
    "candidates",
    "checkpoint",
    "choose_borders",
    "choose_detours",
    "dense_pairs",
    "force_axis",
    "heirs",
    "lower_bound",
    "memo",
    "mirrors",
    "moves",
    "openings",
    "prefill",
    "recipe",
    "refine",
    "refusal",
    "scorer",
    "stage_memory",
    "study",
]
