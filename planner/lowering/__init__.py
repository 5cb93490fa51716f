"""From the layouts to a Plan: who computes and sends what in which order, and the ONNX model of each segment.

May import: planner/access, planner/access/declare, planner/cost, planner/devices, planner/errors, planner/layers,
planner/layout, planner/model, planner/plans, planner/region.
"""

__all__ = ["borders_first", "draft", "evidence", "lower", "outline", "relays", "schedule", "segment"]
