"""The attention family: operators that attend, and what transformers have around them.

May import: planner/access/declare, planner/access/operators, planner/region.
"""

__all__ = ["contrib", "embedding", "onnx", "projected", "rotary"]
