"""Models: an ONNX file becomes a Graph, checked, with its free dimensions bound and its constants folded.

May import: planner/errors, planner/model/rewrites, planner/model/shapes, planner/region, planner/tdl.
"""

__all__ = [
    "assumed_shapes",
    "blobs",
    "context_shapes",
    "described_operators",
    "digests",
    "foreign_formats",
    "graph",
    "load",
    "model_file",
    "protos",
    "stateful",
    "states",
    "subgraphs",
    "validate",
    "weights",
]
