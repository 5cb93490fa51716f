"""The protocol of access maps, and the building blocks from which operators are declared.

May import: planner/errors, planner/model, planner/region, planner/tdl.
"""

__all__ = [
    "aligned",
    "bound",
    "cache",
    "channels_last",
    "cut_nodes",
    "derived",
    "described",
    "loops",
    "protocol",
    "reducers",
    "shared_axes",
    "window",
]
