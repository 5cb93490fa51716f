"""Data movement: Concat, Split, Slice, Pad, Transpose, Expand, Tile, Gather, DepthToSpace, SpaceToDepth and others.
Inputs of which nothing is moved are not read. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate

import numpy as np

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, broadcast
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.cut_nodes import cut, integers, slice_node
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, local_node, split_axes
from edgepart.planner.access.declare.protocol import Axis, Local, LocalNode, Outputs
from edgepart.planner.region import Array, Interval, Region, Span, span, span_hull, span_intersect


def shift(one: Span, by: int) -> Span:
    return tuple(Interval(i.start + by, i.stop + by) for i in one)


class DataMovement(Derived):
    """The base class of the declarations in this module: any axis can be cut, and nothing is computed."""

    family = "move"
    kept: tuple[int, ...] | None = None
    """The output axes that can be cut; None for all."""

    def __init__(self, bound: BoundOperator) -> None:
        self.bound = bound

    def axes(self) -> tuple[Axis, ...]:
        shape = self.bound.output
        return split_axes(shape, range(len(shape)) if self.kept is None else self.kept)

    def widen(self, outputs: Outputs) -> Outputs:
        return outputs

    def work(self, computed: Outputs) -> float:
        return 0.0


class Concat(DataMovement):
    """Concat. An input is read only if a part of it is wanted, and only that part."""

    def __init__(self, bound: BoundOperator) -> None:
        super().__init__(bound)
        self.axis = int(bound.attribute("axis", 1)) % len(bound.output)
        extents = [bound.shape(index)[self.axis] for index in range(len(bound.inputs))]
        stops = list(accumulate(extents))
        self.parts = [(stop - extent, stop) for stop, extent in zip(stops, extents, strict=True)]

    def reads(self, computed: Outputs) -> Reads:
        region = computed[0]
        found: list[Region | None] = []
        for start, stop in self.parts:
            common = span_intersect(region.spans[self.axis], span((start, stop)))
            found.append(region.replace(self.axis, shift(common, -start)) if common else None)
        return tuple(found)

    def nodes(self, computed: Outputs) -> Local:
        used = tuple(index for index, read in enumerate(self.reads(computed)) if read is not None)
        if len(used) == 1:
            return (LocalNode("Identity", used, (0,)),)
        return (LocalNode("Concat", used, (0,), {"axis": self.axis}),)


class Split(DataMovement):
    """Split. Each wanted output is cut out of the region of the input that is read."""

    def __init__(self, bound: BoundOperator) -> None:
        super().__init__(bound)
        self.axis = int(bound.attribute("axis", 0)) % len(bound.output)
        self.kept = tuple(axis for axis in range(len(bound.output)) if axis != self.axis)
        extents = [shape[self.axis] if shape else 0 for shape in bound.outputs]
        self.starts = [stop - extent for stop, extent in zip(accumulate(extents), extents, strict=True)]

    def reads(self, computed: Outputs) -> Reads:
        region = reduce(Region.union_spans, (self._source(index, one) for index, one in computed.items()))
        return (region, *([None] * (len(self.bound.inputs) - 1)))

    def nodes(self, computed: Outputs) -> Local:
        read = self.reads(computed)[0]
        assert read is not None
        return tuple(
            node
            for index, one in computed.items()
            for node in cut(0, index, self._source(index, one).within(read), read.shape, self.bound.opset)
        )

    def _source(self, index: int, one: Region) -> Region:
        return one.replace(self.axis, shift(one.spans[self.axis], self.starts[index]))


@dataclass(frozen=True, slots=True)
class Walk:
    """One axis of a Slice: output `i` reads `start + i * step`."""

    start: int = 0
    step: int = 1

    def read(self, one: Span) -> Span:
        if self.step == 1:
            return shift(one, self.start)
        first, last = self.start + one[0].start * self.step, self.start + (one[-1].stop - 1) * self.step
        return span((min(first, last), max(first, last) + 1))


class Slice(DataMovement):
    """Slice. With step 1, exactly the wanted elements are read, and nothing is left to do locally."""

    def __init__(self, bound: BoundOperator, walks: Sequence[Walk]) -> None:
        super().__init__(bound)
        self.walks = tuple(walks)

    def widen(self, outputs: Outputs) -> Outputs:
        spans = zip(outputs[0].spans, self.walks, strict=True)
        return {0: Region(tuple(one if walk.step == 1 else span_hull(one) for one, walk in spans))}

    def reads(self, computed: Outputs) -> Reads:
        spans = zip(computed[0].spans, self.walks, strict=True)
        region = Region(tuple(walk.read(one) for one, walk in spans))
        return (region, *([None] * (len(self.bound.inputs) - 1)))

    def nodes(self, computed: Outputs) -> Local:
        read = self.reads(computed)[0]
        assert read is not None
        axes = [axis for axis, walk in enumerate(self.walks) if walk.step != 1 and read.shape[axis] > 1]
        if not axes:
            return (LocalNode("Identity", (0,), (0,)),)
        steps = [self.walks[axis].step for axis in axes]
        extents = [read.shape[axis] for axis in axes]
        starts = [0 if step > 0 else extent - 1 for step, extent in zip(steps, extents, strict=True)]
        stops = [extent if step > 0 else -extent - 1 for step, extent in zip(steps, extents, strict=True)]
        return (slice_node(0, 0, axes, starts, stops, self.bound.opset, steps),)


def slice_(bound: BoundOperator) -> Derived:
    starts = bound.integers_of(1, "starts")
    given = [bound.integers_of(index, name) for index, name in ((3, "axes"), (4, "steps"))]
    if starts is None or any(one is None and bound.has(n + 3) for n, one in enumerate(given)):
        return WholeOperator(bound, "where it begins is known only at run time")
    axes = given[0] or tuple(range(len(starts)))
    steps = given[1] or (1,) * len(starts)
    shape = bound.shape(0)
    walks = [Walk()] * len(shape)
    for start, axis, step in zip(starts, axes, steps, strict=True):
        extent = shape[axis]
        start = start + extent if start < 0 else start
        walks[axis] = Walk(min(max(start, 0), extent if step > 0 else extent - 1), step)
    return Slice(bound, walks)


class Pad(DataMovement):
    """Pad. An axis that is padded with its own elements (reflect, edge, wrap) is made whole; other axes, padded with a
    constant, can be cut."""

    def __init__(
        self, bound: BoundOperator, begins: Sequence[int], ends: Sequence[int], constant: bool
    ) -> None:
        super().__init__(bound)
        self.begins = tuple(begins)
        rank = len(bound.output)
        self.held = [not constant and bool(begins[axis] or ends[axis]) for axis in range(rank)]
        self.kept = tuple(axis for axis in range(rank) if not self.held[axis])

    def widen(self, outputs: Outputs) -> Outputs:
        return {0: Region(tuple(self._computed_span(axis, one) for axis, one in enumerate(outputs[0].spans)))}

    def _computed_span(self, axis: int, one: Span) -> Span:
        extent, begin = self.bound.shape(0)[axis], self.begins[axis]
        if self.held[axis]:
            return span((0, self.bound.output[axis]))
        if begin == 0 and extent == self.bound.output[axis]:
            return one
        hull = span_hull(one)[0]
        # If only padding is wanted, the nearest element is made too, as a node has to read something.
        nearest = max(begin, 0), min(begin + extent, self.bound.output[axis])
        return span((min(hull.start, nearest[1] - 1), max(hull.stop, nearest[0] + 1)))

    def reads(self, computed: Outputs) -> Reads:
        found = [self.bound.whole(index) for index in range(len(self.bound.inputs))]
        begins, ends = self._local(computed[0])
        padded = any(begins) or any(ends)
        for index in (1, 3) if padded else (1, 2, 3):  # Pads and axes are constants of the local node.
            if index < len(found):
                found[index] = None
        shape = self.bound.shape(0)
        spans = zip(computed[0].spans, self.begins, shape, self.held, strict=True)
        found[0] = Region(
            tuple(
                span((0, extent)) if held else span_intersect(shift(one, -begin), span((0, extent)))
                for one, begin, extent, held in spans
            )
        )
        return tuple(found)

    def nodes(self, computed: Outputs) -> Local:
        begins, ends = self._local(computed[0])
        if not any(begins) and not any(ends):
            return (LocalNode("Identity", (0,), (0,)),)
        node = local_node(self.bound)
        if self.bound.version < 11:
            return (replace(node, attributes={**node.attributes, "pads": begins + ends}),)
        inputs = (0, integers(begins + ends), *(n for n in node.inputs[2:3]))
        return (replace(node, inputs=inputs),)

    def _local(self, region: Region) -> tuple[list[int], list[int]]:
        begins, ends = [], []
        for axis, one in enumerate(region.spans):
            extent, begin = self.bound.shape(0)[axis], self.begins[axis]
            if self.held[axis]:
                begins.append(begin)
                ends.append(self.bound.output[axis] - extent - begin)
                continue
            begins.append(max(begin - one[0].start, 0))
            ends.append(max(one[-1].stop - begin - extent, 0))
        return begins, ends


def pad(bound: BoundOperator) -> Derived:
    pads = bound.integers_of(1, "pads")
    axes = bound.constant(3)
    if pads is None or (axes is None and bound.has(3)):
        return WholeOperator(bound, "how much it pads is known only at run time")
    rank = len(bound.output)
    chosen = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    begins, ends = [0] * rank, [0] * rank
    for n, axis in enumerate(chosen):
        begins[axis], ends[axis] = pads[n], pads[n + len(chosen)]
    for axis, extent in enumerate(bound.output):
        if max(begins[axis], 0) >= min(begins[axis] + bound.shape(0)[axis], extent):
            return WholeOperator(bound, "it cuts off all that it reads")
    return Pad(bound, begins, ends, bound.text("mode", "constant") == "constant")


def transpose(bound: BoundOperator) -> Derived:
    rank = len(bound.output)
    order = bound.integers("perm") or tuple(reversed(range(rank)))
    reads = [Along(order.index(axis)) for axis in range(rank)]
    return Aligned(bound, [reads], family="move", work=0.0)


class Expand(Aligned):
    """Expand, to the wanted shape; the shape that the model gives is not read."""

    def nodes(self, computed: Outputs) -> Local:
        return (LocalNode("Expand", (0, integers(computed[0].shape)), (0,)),)


def expand(bound: BoundOperator) -> Derived:
    reads = [broadcast(bound.inputs[0], bound.output), None]
    return Expand(bound, reads, family="move", work=0.0)


class Tile(DataMovement):
    """Tile: output `i` reads `i % extent`. A piece inside one copy is read as it is; otherwise whole copies are made."""

    def widen(self, outputs: Outputs) -> Outputs:
        spans = zip(outputs[0].spans, self.bound.shape(0), self.bound.output, strict=True)
        return {0: Region(tuple(_copies(one, extent, out) for one, extent, out in spans))}

    def reads(self, computed: Outputs) -> Reads:
        spans = zip(computed[0].spans, self.bound.shape(0), strict=True)
        region = Region(tuple(_one_copy(one, extent) for one, extent in spans))
        return (region, *([None] * (len(self.bound.inputs) - 1)))

    def nodes(self, computed: Outputs) -> Local:
        read = self.reads(computed)[0]
        assert read is not None
        counts = [made // have for made, have in zip(computed[0].shape, read.shape, strict=True)]
        return (LocalNode("Tile", (0, integers(counts)), (0,)),)


def _copies(one: Span, extent: int, out: int) -> Span:
    if extent == out:
        return one
    hull = span_hull(one)[0]
    first, last = hull.start // extent, (hull.stop - 1) // extent
    return span(hull) if first == last else span((first * extent, (last + 1) * extent))


def _one_copy(one: Span, extent: int) -> Span:
    if span_hull(one)[0].size > extent:
        return span((0, extent))
    return shift(one, -(one[0].start // extent * extent))


class ConstantGather(DataMovement):
    """Gather with known indices: only the rows that they name are read."""

    def __init__(self, bound: BoundOperator, axis: int, indices: Array) -> None:
        super().__init__(bound)
        self.axis = axis
        self.indices = np.where(indices < 0, indices + bound.shape(0)[axis], indices).astype(np.int64)

    def reads(self, computed: Outputs) -> Reads:
        rows = np.unique(self._indices_of(computed[0]))
        spans = computed[0].spans
        after = self.axis + self.indices.ndim
        named = span(*((int(row), int(row) + 1) for row in rows))
        return Region((*spans[: self.axis], named, *spans[after:])), None

    def nodes(self, computed: Outputs) -> Local:
        named = self._indices_of(computed[0])
        packed = np.asarray(np.searchsorted(np.unique(named), named), np.int64)
        return (LocalNode("Gather", (0, packed), (0,), {"axis": self.axis}),)

    def _indices_of(self, region: Region) -> Array:
        after = self.axis + self.indices.ndim
        return Region(region.spans[self.axis : after]).crop(self.indices)


_FEW = 64
"""The largest number of known indices that are read row by row. More indices (as into a table) would make
regions of many small pieces."""


def gather(bound: BoundOperator) -> Derived:
    data, indices = bound.shape(0), bound.shape(1)
    axis = int(bound.attribute("axis", 0)) % len(data)
    known = bound.constant(1) if int(np.prod(indices)) <= _FEW else None
    if known is not None and ((known >= -data[axis]) & (known < data[axis])).all():
        return ConstantGather(bound, axis, known)
    step = len(indices) - 1
    reads: list[AxisReads] = [
        [None if n == axis else Along(n if n < axis else n + step) for n in range(len(data))],
        [Along(axis + n) for n in range(len(indices))],
    ]
    return Aligned(bound, reads, family="move", work=0.0)


def gather_elements(bound: BoundOperator) -> Derived:
    rank = len(bound.output)
    axis = int(bound.attribute("axis", 0)) % rank
    data: AxisReads = [None if n == axis else Along(n) for n in range(rank)]
    return Aligned(bound, [data, [Along(n) for n in range(rank)]], family="move", work=0.0)


def depth_to_space(bound: BoundOperator) -> Derived:
    block = int(bound.attribute("blocksize"))
    reads = [Along(0), None, Along(2, per=block), Along(3, per=block)]
    return Aligned(bound, [reads], whole=(1,), family="move", work=0.0)


def space_to_depth(bound: BoundOperator) -> Derived:
    block = int(bound.attribute("blocksize"))
    reads = [Along(0), None, Along(2, times=block), Along(3, times=block)]
    return Aligned(bound, [reads], whole=(1,), family="move", work=0.0)


def concat(bound: BoundOperator) -> Derived:
    return Concat(bound) if bound.output else WholeOperator(bound, "it joins scalars")


def split(bound: BoundOperator) -> Derived:
    if None in bound.outputs:
        return WholeOperator(
            bound, "it leaves outputs out, so where the others begin is not told by their shapes"
        )
    return Split(bound)


def compress(bound: BoundOperator) -> Derived:
    """Declares Compress, which keeps the elements that a condition selects along one axis; the other axes can
    be cut."""
    given = bound.attribute("axis")
    if given is None:
        return WholeOperator(bound, "it keeps what a condition says of a flat input")
    axis = int(given) % len(bound.output)
    data: AxisReads = [None if n == axis else Along(n) for n in range(len(bound.output))]
    return Aligned(bound, [data, [None]], whole=(axis,), family="move", work=0.0)


def one_hot(bound: BoundOperator) -> Derived:
    """Declares OneHot with the inputs indices, depth, values. The operator adds an axis, along which one
    element is marked."""
    rank = len(bound.output)
    axis = int(bound.attribute("axis", -1)) % rank
    indices: AxisReads = [Along(n) for n in range(rank) if n != axis]
    rest: list[AxisReads] = [[None] * len(bound.shape(index)) for index in (1, 2)]
    return Aligned(bound, [indices, *rest], whole=(axis,), family="move", work=0.0)


DECLARATIONS: dict[str, Callable[[BoundOperator], Derived]] = {
    "Compress": compress,
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Gather": gather,
    "GatherElements": gather_elements,
    "OneHot": one_hot,
    "Pad": pad,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Tile": Tile,
    "Transpose": transpose,
}
