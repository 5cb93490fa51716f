"""The language in which operators are declared, and the parts that declarations are put together from.

May import: planner/errors, planner/model, planner/region.
"""

__all__ = [
    "aligned",
    "bound",
    "cache",
    "channels_last",
    "cut_nodes",
    "derived",
    "loops",
    "protocol",
    "reducers",
    "shared_axes",
    "window",
]
