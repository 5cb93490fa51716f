"""Shapes: what is known of the shapes and element types of values: bound by the user, said by the file, and written by
operators.

May import: planner/errors, planner/model.
"""

__all__ = ["declared_types", "free_dimensions", "shape_inference"]
