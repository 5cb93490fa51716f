"""Selection: what values say which elements are kept, marked or counted. Pure."""

from __future__ import annotations

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads
from edgepart.planner.access.declare.bound import Bound
from edgepart.planner.access.declare.derived import Derived, Whole


def compress(bound: Bound) -> Derived:
    """Along one axis, what a condition keeps; the other axes are free."""
    given = bound.attribute("axis")
    if given is None:
        return Whole(bound, "it keeps what a condition says of a flat input")
    axis = int(given) % len(bound.output)
    data: AxisReads = [None if n == axis else Along(n) for n in range(len(bound.output))]
    return Aligned(bound, [data, [None]], whole=(axis,), family="move", work=0.0)


def one_hot(bound: Bound) -> Derived:
    """indices, depth, values: an axis is put in, along which one element is marked."""
    rank = len(bound.output)
    axis = int(bound.attribute("axis", -1)) % rank
    indices: AxisReads = [Along(n) for n in range(rank) if n != axis]
    rest: list[AxisReads] = [[None] * len(bound.shape(index)) for index in (1, 2)]
    return Aligned(bound, [indices, *rest], whole=(axis,), family="move", work=0.0)


DECLARATIONS = {"Compress": compress, "OneHot": one_hot}

_COUNTED = "its values decide how much it writes"

OPAQUE = {
    ("", "NonZero"): _COUNTED,
    ("", "Unique"): "it compares all of its elements with each other",
    ("com.microsoft", "Unique"): "it compares all of its elements with each other",
    ("", "DynamicQuantizeLinear"): "its scale is that of the smallest and the largest of the whole tensor",
}
