"""Scattering and its inverse: ScatterElements, ScatterND, TensorScatter, GatherND. An axis that indices point
into is whole, because they may point anywhere on it. If the indices are known, only the updates that land in
a region are read. Rules only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads
from edgepart.planner.access.declare.bound import BoundOperator, Shape
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, local_node, split_axes
from edgepart.planner.access.declare.protocol import Axis, Local, LocalNode, Outputs
from edgepart.planner.region import Array, Interval, Region, Span, span, span_hull, span_intersect


@dataclass(frozen=True, slots=True)
class Landing:
    """The parts of the indices and of the updates that land in a region."""

    indices: Region
    updates: Region


class Scatter(Derived):
    """Operators that change some elements of input 0, by indices (input 1) and updates (input 2). A region in which no
    update lands stays as it is."""

    family = "move"
    whole: frozenset[int]
    """The axes that cannot be cut."""

    def __init__(self, bound: BoundOperator) -> None:
        self.bound = bound

    def axes(self) -> tuple[Axis, ...]:
        return split_axes(
            self.bound.output, [n for n in range(len(self.bound.output)) if n not in self.whole]
        )

    def widen(self, outputs: Outputs) -> Outputs:
        region = outputs[0]
        for axis in self.whole:
            region = region.replace(axis, span((0, self.bound.output[axis])))
        return {0: region}

    @abstractmethod
    def find_landing(self, region: Region) -> Landing | None:
        """Returns the indices and updates that land in `region`; None if none do."""

    def reads(self, computed: Outputs) -> Reads:
        found = self.find_landing(computed[0])
        return (computed[0], found.indices, found.updates) if found else (computed[0], None, None)

    def nodes(self, computed: Outputs) -> Local:
        if self.find_landing(computed[0]) is None:
            return (LocalNode("Identity", (0,), (0,)),)
        return self.scatter(computed[0])

    def scatter(self, region: Region) -> Local:
        """Returns nodes that write into `region` the updates that land there."""
        return (local_node(self.bound),)

    def work(self, computed: Outputs) -> float:
        found = self.find_landing(computed[0])
        return float(found.updates.size) if found else 0.0


class ScatterElements(Scatter):
    """ScatterElements: output[..., indices[p], ...] = updates[p], at p's own position on each other axis.
    Along these other axes, the indices may be shorter than the data; they then cover the first positions of
    the data."""

    def __init__(self, bound: BoundOperator) -> None:
        super().__init__(bound)
        self.axis = int(bound.attribute("axis", 0)) % len(bound.output)
        self.whole = frozenset({self.axis})

    def find_landing(self, region: Region) -> Landing | None:
        places = Region.full(self.bound.shape(1))
        found = region.replace(self.axis, places.spans[self.axis]).intersect(places)
        return None if found.is_empty else Landing(found, found)


class ScatterSlices(Scatter):
    """ScatterND: output[indices[p]] = updates[p]. An index names positions on the first axes of the data; the
    remaining axes run along axes of the updates. `tuples`: the indices, if they are known."""

    def __init__(self, bound: BoundOperator, tuples: Array | None) -> None:
        super().__init__(bound)
        *places, self.named = bound.shape(1)
        self.places: Shape = tuple(places)
        self.ways = (
            [None] * self.named if tuples is None else [_way(tuples[..., n]) for n in range(self.named)]
        )
        self.whole = frozenset(axis for axis, way in enumerate(self.ways) if way is None)

    def widen(self, outputs: Outputs) -> Outputs:
        """Makes each axis that indices name as one interval, so that one number shifts its indices."""
        region = super().widen(outputs)[0]
        for axis in range(self.named):
            region = region.replace(axis, span_hull(region.spans[axis]))
        return {0: region}

    def find_landing(self, region: Region) -> Landing | None:
        places = list(Region.full(self.places).spans)
        for axis, way in enumerate(self.ways):
            if way is None:
                continue
            landed = way.find_landing(region.spans[axis])
            if not landed:
                return None
            if way.axis is not None:
                places[way.axis] = span_intersect(places[way.axis], landed)
        updates = Region((*places, *region.spans[self.named :]))
        indices = Region((*places, span((0, self.named))))
        return None if updates.is_empty else Landing(indices, updates)

    def scatter(self, region: Region) -> Local:
        start = np.asarray(region.origin[: self.named], np.int64)
        if not start.any():
            return (local_node(self.bound),)
        return (LocalNode("Sub", (1, start), ("inside",)), local_node(self.bound, inputs=(0, "inside", 2)))


@dataclass(frozen=True)
class IndexPath:
    """The targets of known indices on one axis of the data, which vary along at most one axis of the indices."""

    axis: int | None
    """The axis of the indices along which the target varies; None if all indices have the same target."""
    targets: Array
    """The targets, by position on that axis."""

    def find_landing(self, wanted: Span) -> Span:
        """Returns the positions on `axis` whose target is in `wanted`. If `axis` is None, the result is not
        empty exactly if the target is in `wanted`."""
        return span(*(run for one in wanted for run in _runs(self.targets, one)))


def _runs(targets: Array, wanted: Interval) -> Iterator[tuple[int, int]]:
    """Returns the longest runs of positions whose values are in `wanted`."""
    inside = np.concatenate([[False], (targets >= wanted.start) & (targets < wanted.stop), [False]])
    edges = np.flatnonzero(inside[1:] != inside[:-1]).tolist()
    return zip(edges[::2], edges[1::2], strict=True)


def _way(targets: Array) -> IndexPath | None:
    """Returns the targets of indices on one axis of the data; None if the targets vary along several axes, or
    if an index counts from the end. `targets`: the index on that axis, by position in the indices."""
    if targets.size == 0 or (targets < 0).any():
        return None
    varying = [axis for axis in range(targets.ndim) if (targets != targets.take([0], axis)).any()]
    if len(varying) > 1:
        return None
    one = tuple(slice(None) if axis in varying else 0 for axis in range(targets.ndim))
    return IndexPath(varying[0] if varying else None, np.atleast_1d(targets[one]))


_MISFIT = "its indices do not fit its data"


def scatter_elements(bound: BoundOperator) -> Derived:
    rank = len(bound.output)
    if rank == 0 or any(len(bound.shape(index)) != rank for index in (1, 2)):
        return WholeOperator(bound, _MISFIT)
    return ScatterElements(bound)


def scatter_nd(bound: BoundOperator) -> Derived:
    rank, indices, updates = len(bound.output), bound.shape(1), bound.shape(2)
    if not indices or indices[-1] > rank or len(updates) != len(indices) - 1 + rank - indices[-1]:
        return WholeOperator(bound, _MISFIT)
    return ScatterSlices(bound, bound.constant(1))


def gather_nd(bound: BoundOperator) -> Derived:
    """Declares GatherND. The first axes are batches of both inputs. The axes of the indices alone follow, and
    then the axes of the slices that the indices point at."""
    data, indices = bound.shape(0), bound.shape(1)
    batches, named = int(bound.attribute("batch_dims", 0)), indices[-1] if indices else 0
    if not 0 <= batches < min(len(data), len(indices)) or batches + named > len(data):
        return WholeOperator(bound, _MISFIT)
    after = len(indices) - 1 - (batches + named)
    if len(bound.output) != len(data) + after:
        return WholeOperator(bound, _MISFIT)
    reads: list[AxisReads] = [
        [
            Along(n) if n < batches else None if n < batches + named else Along(n + after)
            for n in range(len(data))
        ],
        [*map(Along, range(len(indices) - 1)), None],
    ]
    return Aligned(bound, reads, family="move", work=0.0)


def tensor_scatter(bound: BoundOperator) -> Derived:
    """Declares TensorScatter, which replaces rows of a cache. Each batch has its own index of the first row
    to replace."""
    if len(bound.output) < 2:
        return WholeOperator(bound, "it has no batches")
    axis = int(bound.attribute("axis", -2)) % len(bound.output)
    rows: AxisReads = [None if n == axis else Along(n) for n in range(len(bound.output))]
    reads: list[AxisReads | None] = [rows, rows, [Along(0)]]
    return Aligned(bound, reads[: len(bound.inputs)], whole=(axis,), family="move", work=0.0)


DECLARATIONS: dict[str, Callable[[BoundOperator], Derived]] = {
    "GatherND": gather_nd,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
}
