"""Local nodes that cut pieces out of packed arrays, in the form that an opset wants. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgepart.planner.access.declare.protocol import LocalNode
from edgepart.planner.region import Array, Region


def integers(values: Sequence[int]) -> Array:
    """A constant input of an ONNX node: one axis of int64."""
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
    """Slice: attributes up to opset 9 (no steps there), inputs from opset 10."""
    if opset < 10:
        bounds = {"axes": list(axes), "starts": list(starts), "ends": list(stops)}
        return LocalNode("Slice", (source,), (target,), bounds)
    inputs: tuple[int | str | Array, ...] = (source, integers(starts), integers(stops), integers(axes))
    return LocalNode("Slice", inputs if steps is None else (*inputs, integers(steps)), (target,))


def cut(
    source: int | str, target: int | str, inner: Region, shape: Sequence[int], opset: int
) -> tuple[LocalNode, ...]:
    """Nodes that take `inner` out of a packed array of `shape`: one Slice, and for each axis with several
    intervals a Slice for each and a Concat. Identity where `inner` is everything."""
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
