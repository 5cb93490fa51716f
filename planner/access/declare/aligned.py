"""Aligned: the building block for operators that do the same to a crop of their inputs as to the whole
inputs. Rules only.

Element-wise operators, contractions, reductions, normalisations and transpositions are of this kind: each axis of an
input either runs along an axis of the output (perhaps in blocks), or is read whole. The local node is the operator
itself. Regions may have several intervals on an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from math import lcm
from typing import Any

from edgepart.planner.access.declare.bound import BoundOperator, Shape
from edgepart.planner.access.declare.derived import Derived, Reads, local_node, round_out, split_axes
from edgepart.planner.access.declare.protocol import Addend, Axis, Local, Outputs, Reduction
from edgepart.planner.access.declare.reducers import combine_addends
from edgepart.planner.region import Interval, Region, Span, span


@dataclass(frozen=True, slots=True)
class Along:
    """An input axis that runs along an output axis: output index `i` reads input indices from `i * times // per` up to
    `ceil((i + 1) * times / per)`."""

    axis: int
    times: int = 1
    per: int = 1

    def read(self, out: Region, extent: int) -> Span:
        one = out.spans[self.axis]
        if self.times == 1 and self.per == 1:
            return one
        bounds = ((i.start * self.times // self.per, -(-i.stop * self.times // self.per)) for i in one)
        return span(*((start, min(stop, extent)) for start, stop in bounds))


@dataclass(frozen=True, slots=True)
class Inner:
    """An input axis that is reduced. It is read whole, but a device that makes only a part of the reduction
    reads only that part of the axis."""

    name: str = "inner"
    """The name of the reduced Axis."""
    per: int = 1
    """The number of indices of the reduced axis that share one index of this input's axis, as a block shares
    a scale."""

    def part(self, of: Interval) -> Interval:
        """Returns the interval of this input's axis that is read for a part of the reduced axis."""
        return Interval(of.start // self.per, -(-of.stop // self.per))


@dataclass(frozen=True, slots=True)
class Fixed:
    """An input axis of which the same part is read for every region of the output."""

    part: Interval


AxisReads = Sequence[Along | Inner | Fixed | None]
"""How each axis of one input is read: Along an output axis, Inner if it is reduced, Fixed if the same part is
always read, None if it is read whole."""


def broadcast(shape: Shape | None, output: Shape) -> AxisReads | None:
    """Returns how an input that is broadcast to `output` is read. The last axes are aligned, as in numpy."""
    if shape is None:
        return None
    offset = len(output) - len(shape)
    return [None if extent == 1 else Along(axis + offset) for axis, extent in enumerate(shape)]


def vector(shape: Shape | None, axis: int, extent: int, per: int = 1) -> AxisReads | None:
    """Returns how an input is read if it holds one value, or one value for each index (or block of `per`
    indices) of output axis `axis`, which has `extent` indices."""
    if shape is None:
        return None
    along = len(shape) == 1 and shape[0] > 1 and shape[0] == -(-extent // per)
    return [Along(axis, per=per)] if along else [None] * len(shape)


def _read(one: Along | Inner | Fixed | None, region: Region, extent: int) -> Span:
    match one:
        case Along():
            return one.read(region, extent)
        case Fixed(part):
            return (part,)
        case _:
            return span((0, extent))


class Aligned(Derived):
    """See the module's docstring. All outputs must have the same shape."""

    def __init__(
        self,
        bound: BoundOperator,
        reads: Sequence[AxisReads | None],
        *,
        whole: Iterable[int] = (),
        family: str = "elementwise",
        work: float = 1.0,
        reduced: tuple[Axis, ...] = (),
        names: Sequence[str] | None = None,
        attributes: Callable[[Region], Mapping[str, Any]] | None = None,
        part_attributes: Callable[[Interval], Mapping[str, Any]] | None = None,
        quanta: Mapping[int, int] | None = None,
        once: Iterable[int] = (),
    ) -> None:
        """`reads`: how each input is read. `whole`: output axes that cannot be cut. `work`: FLOPs for each element of
        the computed region. `reduced`: the axes that `Inner` names. `names`: the names of the output's axes.
        `attributes`: the attributes that change with the region. `part_attributes`: the attributes that change with
        the part of a reduced axis. `quanta`: quanta by output axis, beside those that `reads` imply. `once`: inputs
        that only the first part of a reduced axis reads, such as a bias."""
        self.bound = bound
        self.family = family
        self._reads = tuple(reads)
        self._same = tuple(map(self._is_same, bound.inputs, self._reads))
        self._work = work
        self._attributes = attributes
        self._part_attributes = part_attributes
        self._once = frozenset(once)
        self._left_out: frozenset[int] = frozenset()
        self._whole = frozenset(whole)
        shape = bound.output
        extra = quanta or {}
        self._quanta = [extra.get(axis, 1) for axis in range(len(shape))]
        for along in (a for one in self._reads if one is not None for a in one if isinstance(a, Along)):
            self._quanta[along.axis] = lcm(self._quanta[along.axis], along.per)
        kept = [axis for axis in range(len(shape)) if axis not in self._whole]
        self._axes = split_axes(shape, kept, names, self._quanta) + reduced
        self._exact = not self._whole and all(q == 1 for q in self._quanta)

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def widen(self, outputs: Outputs) -> Outputs:
        if self._exact and len(outputs) == 1:
            return outputs
        region = self._widen_region(reduce(Region.union_spans, outputs.values()))
        return dict.fromkeys(outputs, region)

    def _widen_region(self, region: Region) -> Region:
        shape = self.bound.output
        return Region(
            tuple(
                span((0, extent)) if axis in self._whole else round_out(one, self._quanta[axis], extent)
                for axis, (one, extent) in enumerate(zip(region.spans, shape, strict=True))
            )
        )

    def reads(self, computed: Outputs) -> Reads:
        region = next(iter(computed.values()))
        found: list[Region | None] = []
        for same, shape, read in zip(self._same, self.bound.inputs, self._reads, strict=True):
            if shape is None or read is None:
                found.append(None)
            elif same:
                found.append(region)
            else:
                spans = [_read(one, region, extent) for one, extent in zip(read, shape, strict=True)]
                found.append(Region(tuple(spans)))
        return tuple(found)

    def _is_same(self, shape: Shape | None, read: AxisReads | None) -> bool:
        """Whether the region that is read of an input always equals the region that is written, which is the
        usual case. `reads` then makes no new region."""
        if read is None or shape != self.bound.output or len(read) != len(shape):
            return False
        return all(
            (one.axis == axis and one.times == one.per == 1)
            if isinstance(one, Along)
            else one is None and extent == 1
            for axis, (one, extent) in enumerate(zip(read, shape, strict=True))
        )

    def reduction(self, axis: Axis) -> Reduction:
        """Returns a reduction with one addend of the output's shape, which the operator itself makes from a
        part of the reduced axis."""
        addend = Addend(self.bound.output, self.bound.dtype(0))
        return Reduction(
            (addend,), lambda part: self._part(axis, part), lambda parts: combine(self.bound, axis, parts)
        )

    def _part(self, axis: Axis, part: Interval) -> Aligned:
        def restrict(read: AxisReads) -> AxisReads:
            return [Fixed(a.part(part)) if isinstance(a, Inner) and a.name == axis.name else a for a in read]

        one = copy(self)
        later = self._once if part.start else frozenset()
        one._reads = tuple(
            None if read is None or n in later else restrict(read) for n, read in enumerate(self._reads)
        )
        one._same = tuple(map(one._is_same, one.bound.inputs, one._reads))
        one._left_out = later
        one._work = self._work * part.size / axis.extent
        one._axes = tuple(other for other in self._axes if other.reducer is None)
        if self._part_attributes is not None:
            changed, always = self._part_attributes(part), self._attributes
            one._attributes = lambda region: {**(always(region) if always else {}), **changed}
        return one

    def nodes(self, computed: Outputs) -> Local:
        inputs = tuple(None if n in self._left_out else n for n in self.bound.present)
        node = local_node(self.bound, computed, inputs)
        if self._attributes is None:
            return (node,)
        changed = self._attributes(next(iter(computed.values())))
        return (replace(node, attributes={**node.attributes, **changed}),)

    def work(self, computed: Outputs) -> float:
        return next(iter(computed.values())).size * self._work


def combine(bound: BoundOperator, axis: Axis, parts: Sequence[Interval]) -> Derived:
    """Returns the operator that makes output 0 of `bound` from the addends of `parts` (each of the output's shape), by
    the axis' reducer."""
    shape, dtype = bound.output, bound.dtype(0)
    given = BoundOperator(
        replace(bound.operator, inputs=("",) * len(parts), captured=()),
        bound.graph,
        (shape,) * len(parts),
        (shape,),
    )
    assert axis.reducer is not None
    weights = [part.size / axis.extent for part in parts]
    return Combined(given, combine_addends(axis.reducer, weights, dtype))


class Combined(Aligned):
    """An element-wise operator that runs the given local nodes."""

    def __init__(self, bound: BoundOperator, local: Local) -> None:
        super().__init__(
            bound, [broadcast(shape, bound.output) for shape in bound.inputs], work=len(bound.inputs)
        )
        self._local = local

    def nodes(self, computed: Outputs) -> Local:
        return self._local
