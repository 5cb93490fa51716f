"""Rewrites: what rules make of a model before it is planned, where it could not be served well as its file has it.

May import: planner/errors, planner/model.
"""

__all__ = ["in_place", "masked_positions", "merged_decoder", "past_before_rows"]
