"""Cut nodes: local nodes that cut pieces out of packed arrays, in the form that the opset requires. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgepart.planner.access.declare.protocol import LocalNode
from edgepart.planner.region import Array, Region


def integers(values: Sequence[int]) -> Array:
    """Returns a constant input of an ONNX node: an int64 array with one axis."""
    return np.asarray(values, dtype=np.int64)


def slice_node(
    source: int | str,
    target: int | str,
    axes: Sequence[int],
    starts: Sequence[int],
    stops: Sequence[int],
    opset: int,
    steps: Sequence[int] | None = None,
) -> LocalNode:
    """Returns a Slice. Its bounds are attributes up to opset 9 (without steps), and inputs from opset 10 on."""
    if opset < 10:
        bounds = {"axes": list(axes), "starts": list(starts), "ends": list(stops)}
        return LocalNode("Slice", (source,), (target,), bounds)
    inputs: tuple[int | str | Array, ...] = (source, integers(starts), integers(stops), integers(axes))
    return LocalNode("Slice", inputs if steps is None else (*inputs, integers(steps)), (target,))


def cut(
    source: int | str, target: int | str, inner: Region, shape: Sequence[int], opset: int
) -> tuple[LocalNode, ...]:
    """Returns nodes that cut `inner` out of a packed array of `shape`: one Slice, then, for each axis with
    several intervals, a Slice for each interval and a Concat. If `inner` is the whole array, the only node is
    an Identity."""
    return tuple(_cut(source, target, inner, shape, opset))


def _cut(
    source: int | str, target: int | str, inner: Region, shape: Sequence[int], opset: int
) -> Iterator[LocalNode]:
    parts = [axis for axis, one in enumerate(inner.spans) if len(one) > 1]
    plain = [
        axis
        for axis, one in enumerate(inner.spans)
        if len(one) == 1 and (one[0].start, one[0].stop) != (0, shape[axis])
    ]
    if plain or not parts:
        after: int | str = f"{target}.box" if parts else target
        if plain:
            starts = [inner.spans[axis][0].start for axis in plain]
            stops = [inner.spans[axis][0].stop for axis in plain]
            yield slice_node(source, after, plain, starts, stops, opset)
        else:
            yield LocalNode("Identity", (source,), (after,))
        source = after
    for axis in parts:
        pieces = [f"{target}.{axis}.{n}" for n in range(len(inner.spans[axis]))]
        for piece, interval in zip(pieces, inner.spans[axis], strict=True):
            yield slice_node(source, piece, [axis], [interval.start], [interval.stop], opset)
        source = target if axis == parts[-1] else f"{target}.{axis}"
        yield LocalNode("Concat", tuple(pieces), (source,), {"axis": axis})
