"""Partial norms: norms whose axes may be cut. Each part of an axis gives its mean and the sum of its squared
deviations from that mean. The parts are combined as variances are, and the result normalises any part of the
input. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, Fixed
from edgepart.planner.access.declare.bound import BoundOperator, Shape, axis_names, numpy_dtype
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.derived import Reads
from edgepart.planner.access.declare.protocol import Addend, Axis, Local, LocalNode, Outputs, Reduction
from edgepart.planner.access.declare.reducers import chain, reduce_node
from edgepart.planner.region import Array, Interval, Region, span

_BROADCASTING = 8
"""The first opset in which all operators that combine moments broadcast."""


@dataclass(frozen=True, slots=True)
class NormDivisor:
    """The divisor of a norm: the sum or mean of the elements' powers, or the root of that sum or mean."""

    centred: bool = True
    """Whether the mean is subtracted first."""
    power: int = 2
    """1: absolute values; 2: squares, with a root at the end. A centred norm has squares."""
    averaged: bool = True
    """Whether the mean of the powers is taken instead of their sum."""
    inside: float = 0.0
    """The number that is added under the root."""
    outside: float = 0.0
    """The number that is added to the root."""

    @property
    def addends(self) -> int:
        """The number of addends of each part: the mean if the norm is centred, and the sum of powers."""
        return 1 + self.centred


class Moments(Aligned):
    """A norm over `axes`, and over the channels of a group if a group has several (`each`).

    The norm is whole along `axes`, or reduced along one of them. If it is reduced, combining makes any part
    of the output from the moments of every part and from the same part of the input. If the model also wants
    the statistics (outputs 1 and 2, with extent 1 along `axes`), nothing is reduced."""

    def __init__(
        self,
        bound: BoundOperator,
        reads: Sequence[AxisReads | None],
        axes: Sequence[int],
        spread: NormDivisor,
        *,
        work: float,
        each: int = 1,
        spatial: bool = False,
        **how: Any,
    ) -> None:
        """`reads`, `work` and `how`: as in Aligned. `axes`: the axes that are normalised over, not negative. `spatial`:
        as in axis_names; scale and bias then have one value for each channel or group."""
        names = axis_names(len(bound.output), spatial)
        extents = [(axis, bound.output[axis]) for axis in axes]
        alone = len(bound.outputs) == bound.outputs.count(None) + 1
        reduced = tuple(
            Axis(names[axis], axis, extent, reducer="moments")
            for axis, extent in extents
            if extent > 1 and alone and bound.opset >= _BROADCASTING
        )
        super().__init__(
            bound, reads, whole=axes, family="reduce", work=work, reduced=reduced, names=names, **how
        )
        self.given = tuple(reads)
        self.spread = spread
        self.view = NormalisedView(bound.output, frozenset(axes), each)
        self.spatial = spatial

    def widen(self, outputs: Outputs) -> Outputs:
        wanted = {index: self._region_of(region) for index, region in outputs.items()}
        region = super().widen(wanted)[next(iter(outputs))]
        return {index: region if index == 0 else self._statistics(region) for index in outputs}

    def reads(self, computed: Outputs) -> Reads:
        return super().reads(self._whole_of(computed))

    def work(self, computed: Outputs) -> float:
        return super().work(self._whole_of(computed))

    def _whole_of(self, computed: Outputs) -> Outputs:
        return {0: self._region_of(next(iter(computed.values())))}

    def _region_of(self, region: Region) -> Region:
        """Returns the region of the tensor that is made for a region of any output."""
        for axis in self.view.axes:
            region = region.replace(axis, span((0, self.view.shape[axis])))
        return region

    def _statistics(self, region: Region) -> Region:
        for axis in self.view.axes:
            region = region.replace(axis, span((0, 1)))
        return region

    def reduction(self, axis: Axis) -> Reduction:
        addend = Addend(self.view.statistics, working_type(self.bound))
        again = tuple(index for index, shape in enumerate(self.bound.inputs) if shape is not None)
        return Reduction(
            (addend,) * self.spread.addends,
            lambda part: PartialMoments(self, axis, part),
            lambda parts: Settled(self, axis, parts, again),
            again=again,
        )


@dataclass(frozen=True, slots=True)
class NormalisedView:
    """The tensor as it is normalised. If groups have several channels, these have an axis of their own, axis 2."""

    shape: Shape
    """The shape of the tensor."""
    axes: frozenset[int]
    """The tensor's axes that are normalised over, beside the channels of a group."""
    each: int
    """The number of channels in a group; 1 if there are no groups."""

    @property
    def statistics(self) -> Shape:
        """The shape of one statistic: that of the view, with extent 1 along the axes that are normalised over."""
        kept = [1 if axis in self.axes else extent for axis, extent in enumerate(self.shape)]
        return tuple(kept) if self.each == 1 else (kept[0], kept[1] // self.each, 1, *kept[2:])

    @property
    def over(self) -> list[int]:
        """The axes of the view that are normalised over."""
        if self.each == 1:
            return sorted(self.axes)
        return [2, *(axis + 1 for axis in sorted(self.axes))]

    @property
    def count(self) -> int:
        """The number of elements that one statistic summarises."""
        return self.each * prod(self.shape[axis] for axis in self.axes)

    def of(self, shape: Shape) -> Shape:
        """Returns the shape of the view of a piece of the tensor, which has whole groups."""
        return shape if self.each == 1 else (shape[0], shape[1] // self.each, self.each, *shape[2:])

    def read(self, axis: int, part: Interval) -> AxisReads:
        """Returns how a region of a statistic reads the tensor, for a part of one of `axes`."""
        kept = [Along(0), Along(1, times=self.each)] if self.each > 1 else map(Along, range(len(self.shape)))
        reads: list[Along | Fixed | None] = [*kept, *([None] * len(self.shape))][: len(self.shape)]
        for other in self.axes:
            reads[other] = None
        reads[axis] = Fixed(part)
        return reads

    def read_statistic(self) -> AxisReads:
        """Returns how a region of the tensor reads a statistic."""
        if self.each > 1:
            return [Along(0), Along(1, per=self.each), *[None] * (len(self.shape) - 1)]
        return [None if axis in self.axes else Along(axis) for axis in range(len(self.shape))]


class PartialMoments(Aligned):
    """The operator that makes the moments of a part of one axis: the part's mean (if the norm is centred) and
    its sum of powers."""

    def __init__(self, norm: Moments, axis: Axis, part: Interval) -> None:
        view, count = norm.view, norm.spread.addends
        reads: list[AxisReads | None] = [None] * len(norm.bound.inputs)
        reads[0] = view.read(axis.index, part)
        work = 4.0 * view.count * part.size / axis.extent
        given = replace(norm.bound, outputs=(view.statistics,) * count)
        super().__init__(given, reads, family="reduce", work=work)
        self.norm = norm

    def nodes(self, computed: Outputs) -> Local:
        return tuple(self._nodes(computed))

    def _nodes(self, computed: Outputs) -> Iterator[LocalNode]:
        bound, view, spread = self.norm.bound, self.norm.view, self.norm.spread
        read = self.reads(computed)[0]
        assert read is not None
        yield _cast(0, "working", working_type(bound))
        yield LocalNode("Reshape", ("working", integers(view.of(read.shape))), ("x",))
        powers: str = "x"
        if spread.centred:
            yield reduce_node("ReduceMean", "x", "mean", view.over, bound.opset)
            yield LocalNode("Sub", ("x", "mean"), ("centred",))
            powers = "centred"
        if spread.power == 1:
            yield LocalNode("Abs", (powers,), ("raised",))
        else:
            yield LocalNode("Mul", (powers, powers), ("raised",))
        yield reduce_node("ReduceSum", "raised", "sum", view.over, bound.opset)
        for index, name in enumerate(["mean", "sum"][-spread.addends :]):
            if index in computed:
                yield LocalNode("Identity", (name,), (index,))


class Settled(Aligned):
    """The operator that makes any part of the output from the moments of every part and from the same part of
    the inputs."""

    def __init__(self, norm: Moments, axis: Axis, parts: Sequence[Interval], again: Sequence[int]) -> None:
        moments = norm.spread.addends * len(parts)
        shapes = (*(norm.view.statistics,) * moments, *(norm.bound.inputs[index] for index in again))
        reads = [*(norm.view.read_statistic(),) * moments, *(norm.given[index] for index in again)]
        operator = replace(norm.bound.operator, inputs=("",) * len(shapes))
        super().__init__(
            replace(norm.bound, operator=operator, inputs=shapes), reads, family="elementwise", work=5.0
        )
        self.norm = norm
        self.counts = [part.size / axis.extent * norm.view.count for part in parts]
        self.places = {index: moments + place for place, index in enumerate(again)}

    def nodes(self, computed: Outputs) -> Local:
        region = next(iter(computed.values()))
        return tuple(self._nodes(region.shape))

    def _nodes(self, shape: Shape) -> Iterator[LocalNode]:
        view, kind = self.norm.view, working_type(self.bound)
        yield from self._divisor()
        yield _cast(self.places[0], "working", kind)
        yield LocalNode("Reshape", ("working", integers(view.of(shape))), ("x",))
        made = "x"
        if self.norm.spread.centred:
            yield LocalNode("Sub", ("x", "mean"), ("centred",))
            made = "centred"
        yield LocalNode("Div", (made, "divisor"), ("normalised",))
        made = "normalised"
        for index, (op_type, target) in {1: ("Mul", "scaled"), 2: ("Add", "shifted")}.items():
            if index in self.places:
                yield from self._channels(index, f"input_{index}")
                yield LocalNode(op_type, (made, f"input_{index}"), (target,))
                made = target
        yield LocalNode("Reshape", (made, integers(shape)), ("whole",))
        yield _cast("whole", 0, self.bound.dtype(0))

    def _divisor(self) -> Iterator[LocalNode]:
        """Yields nodes that make the mean and the divisor from the parts' moments."""
        spread, step = self.norm.spread, self.norm.spread.addends
        sums: list[int | str] = list(range(step - 1, step * len(self.counts), step))
        if spread.centred:
            yield from self._mean()
            for n, count in enumerate(self.counts):
                yield LocalNode("Sub", (n * step, "mean"), (f"off_{n}",))
                yield LocalNode("Mul", (f"off_{n}", f"off_{n}"), (f"squared_{n}",))
                yield LocalNode("Mul", (f"squared_{n}", self._number(count)), (f"between_{n}",))
            sums += [f"between_{n}" for n in range(len(self.counts))]
        yield from chain("Add", sums, "powers", "powers")
        made = "powers"
        if spread.averaged:
            yield LocalNode("Div", (made, self._number(sum(self.counts))), ("average",))
            made = "average"
        if spread.inside:
            yield LocalNode("Add", (made, self._number(spread.inside)), ("padded",))
            made = "padded"
        if spread.power == 2:
            yield LocalNode("Sqrt", (made,), ("root",))
            made = "root"
        yield LocalNode("Add", (made, self._number(spread.outside)), ("raised",))
        # Never divide by 0: if the divisor is 0, all elements are 0, and so is the output.
        least = np.finfo(numpy_dtype(working_type(self.bound))).tiny
        yield LocalNode("Max", ("raised", self._number(float(least))), ("divisor",))

    def _mean(self) -> Iterator[LocalNode]:
        step, total = self.norm.spread.addends, sum(self.counts)
        for n, count in enumerate(self.counts):
            yield LocalNode("Mul", (n * step, self._number(count / total)), (f"weighted_{n}",))
        yield from chain("Add", [f"weighted_{n}" for n in range(len(self.counts))], "mean", "means")

    def _channels(self, index: int, target: str) -> Iterator[LocalNode]:
        """Yields nodes that give scale or bias a shape that broadcasts to the view."""
        yield _cast(self.places[index], f"{target}.working", working_type(self.bound))
        if not self.norm.spatial:
            yield LocalNode("Identity", (f"{target}.working",), (target,))
            return
        view = self.norm.view
        inside = 1 if self.norm.bound.shape(index)[0] < view.shape[1] else view.each
        form = [-1, *[inside] * (view.each > 1), *[1] * (len(view.shape) - 2)]
        yield LocalNode("Reshape", (f"{target}.working", integers(form)), (target,))

    def _number(self, value: float) -> Array:
        return np.asarray(value, numpy_dtype(working_type(self.bound)))


def working_type(bound: BoundOperator) -> str:
    """Returns the element type of the moments, which half precision would lose."""
    return "double" if bound.dtype(0) == "double" else "float"


def _cast(source: int | str, target: int | str, kind: str) -> LocalNode:
    to: Mapping[str, Any] = {"to": TensorProto.DataType.Value(kind.upper())}
    return LocalNode("Cast", (source,), (target,), to)
