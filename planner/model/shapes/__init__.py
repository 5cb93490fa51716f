"""Shapes: what is known of the shapes and element types of values, as operators write them.

May import: planner/errors, planner/model.
"""

__all__ = ["shape_inference"]
