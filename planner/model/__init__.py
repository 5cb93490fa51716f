"""Models: an ONNX file becomes a Graph, checked, with its free dimensions bound and its constants folded.

May import: planner/errors, planner/region, planner/tdl.
"""

__all__ = [
    "assumed_shapes",
    "blobs",
    "context_shapes",
    "described_operators",
    "digests",
    "graph",
    "load",
    "masked_positions",
    "merged_decoder",
    "protos",
    "stateful",
    "states",
    "subgraphs",
    "weights",
]
