"""The attention family: attention operators, and the embeddings of transformers.

May import: planner/access/declare, planner/access/operators, planner/region.
"""

__all__ = ["contrib", "embedding", "onnx", "projected", "rotary"]
