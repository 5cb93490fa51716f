"""Models: an ONNX file becomes a Graph, checked, with its free dimensions bound and its constants folded.

May import: planner/errors, planner/region.
"""

__all__ = [
    "assumed_shapes",
    "blobs",
    "digests",
    "graph",
    "load",
    "protos",
    "stateful",
    "states",
    "subgraphs",
]
