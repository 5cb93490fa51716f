"""Lowering: layouts become a Plan, which says what each device computes and sends in which order, with the ONNX model of
each segment.

May import: planner/access, planner/access/declare, planner/cost, planner/devices, planner/errors, planner/layers,
planner/layout, planner/model, planner/plans, planner/region.
"""

__all__ = ["borders_first", "detours", "draft", "evidence", "lower", "outline", "schedule", "segment"]
