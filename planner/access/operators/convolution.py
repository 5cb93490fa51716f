"""Convolutions: Conv, its quantised forms, and ConvTranspose. An output channel reads its group's input channels and its
own row of the weights, so `needs` also returns the slices of the weights. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Self

from edgepart.planner.access.declare.aligned import combine
from edgepart.planner.access.declare.bound import BoundOperator, axis_names
from edgepart.planner.access.declare.cut_nodes import cut
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, round_out, split_axes
from edgepart.planner.access.declare.protocol import Addend, Axis, Local, LocalNode, Outputs, Reduction
from edgepart.planner.access.declare.window import TransposedWindow, Window, stretches, windows
from edgepart.planner.region import Array, Interval, Region, Span, span, span_intersect, span_size


@dataclass(frozen=True, slots=True)
class ConvolutionInputs:
    """The indices of a convolution's inputs."""

    x: int = 0
    w: int = 1
    channels: tuple[int, ...] = (2,)
    """The inputs with one value for each output channel (or one for all)."""
    outputs: tuple[int, ...] = ()
    """The inputs with the output's shape."""
    once: tuple[int, ...] = ()
    """The inputs that only the first part of a sum over input channels reads."""


SUMMING = frozenset({"Conv", "ConvInteger"})
"""The operator types that may be summed over parts of their input channels: neither rounding nor an activation comes
after the sum."""


@dataclass(frozen=True, slots=True)
class GroupRun:
    """Consecutive groups with equally many wanted output channels: one grouped convolution makes them."""

    groups: int
    count: int
    """The number of wanted output channels of each group."""


class Summing(Derived):
    """The base class of convolutions and transposed convolutions: a sum over input channels, which can be
    divided."""

    part: Interval | None = None
    """The input channels that are summed over; None for all."""
    read_each: int
    """The number of input channels of a group, or of the part."""
    _axes: tuple[Axis, ...]

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def reduction(self, axis: Axis) -> Reduction:
        """Returns the reduction over input channels; the first part adds the bias."""
        addend = Addend(self.bound.output, self.bound.dtype(0))
        return Reduction((addend,), self._part, lambda parts: combine(self.bound, axis, parts))

    def _part(self, part: Interval) -> Self:
        one = copy(self)
        one.part = part
        one.read_each = part.size
        one._axes = tuple(axis for axis in self._axes if axis.reducer is None)
        return one


class Convolution(Summing):
    """Conv and its relatives: X [batch, channel, space...], W [output channel, channel of the group, kernel...]."""

    def __init__(self, bound: BoundOperator, places: ConvolutionInputs) -> None:
        self.bound = bound
        self.places = places
        x, w = bound.shape(places.x), bound.shape(places.w)
        self.groups = int(bound.attribute("group", 1))
        self.read_each, self.made_each = x[1] // self.groups, w[0] // self.groups
        self.kernel = w[2:]
        self.windows: tuple[Window, ...] = windows(bound, self.kernel, x[2:])
        self._boxes: dict[tuple[int, Span], tuple[Span, Span]] = {}
        self._wholes = tuple(bound.whole(index) for index in range(len(bound.inputs)))
        channels = (index for index in places.channels if bound.has(index))
        self._per_channel = tuple(index for index in channels if bound.shape(index) == (bound.output[1],))
        self.family = _family(self.groups, self.read_each, self.kernel)
        quanta = [1] * len(x)
        quanta[1] = self.made_each if self.groups > 1 else 1
        names = axis_names(len(x), spatial=True)
        self._axes = split_axes(bound.output, range(len(x)), names, quanta)
        if self.groups == 1 and self.read_each > 1 and bound.operator.op_type in SUMMING:
            self._axes += (Axis("inner", 1, self.read_each, reducer="sum"),)

    def widen(self, outputs: Outputs) -> Outputs:
        wanted = outputs[0].spans
        made = (*wanted[:2], *[self._box(axis, one)[0] for axis, one in enumerate(wanted[2:])])
        return outputs if made == wanted else {0: Region(made)}

    def _box(self, axis: int, wanted: Span) -> tuple[Span, Span]:
        """Returns the span that is made for `wanted` along one spatial axis, and the span of the input that
        it reads. The answers are kept, because many regions share few spans."""
        found = self._boxes.get((axis, wanted))
        if found is None:
            window = self.windows[axis]
            made = window.widen(wanted, self.bound.output[2 + axis])
            found = self._boxes[axis, wanted] = made, window.read(made[0])
        return found

    def reads(self, computed: Outputs) -> Reads:
        batch, channel, *space = computed[0].spans
        read = [self._box(axis, one)[1] for axis, one in enumerate(space)]
        used: Span = self._channels(channel) if self.part is None else (self.part,)
        found = list(self._wholes)
        found[self.places.x] = Region((batch, used, *read))
        inner, *kernel = Region.full(self.bound.shape(self.places.w)).spans[1:]
        found[self.places.w] = Region((channel, inner if self.part is None else used, *kernel))
        for index in self._per_channel:
            found[index] = Region((channel,))
        for index in filter(self.bound.has, self.places.outputs):
            found[index] = computed[0]
        if self.part is not None and self.part.start:
            for index in filter(self.bound.has, self.places.once):
                found[index] = None
        return tuple(found)

    def nodes(self, computed: Outputs) -> Local:
        space = [one[0] for one in computed[0].spans[2:]]
        pads = [w.pads(out) for w, out in zip(self.windows, space, strict=True)]
        attributes = self.bound.with_attributes(
            auto_pad=None,
            kernel_shape=list(self.kernel),
            pads=[begin for begin, _ in pads] + [end for _, end in pads],
        )
        runs = list(_runs(computed[0].spans[1], self.groups, self.made_each))
        op = self.bound.operator
        if len(runs) == 1:
            attributes["group"] = runs[0].groups
            return (
                LocalNode(
                    op.op_type,
                    _local_inputs(self.bound, self.part, self.places.once),
                    (0,),
                    attributes,
                    op.domain,
                ),
            )
        nodes: list[LocalNode] = []
        read = self.reads(computed)
        before_groups = before_channels = 0
        for n, run in enumerate(runs):
            made = (before_channels, before_channels + run.groups * run.count)
            used = (before_groups * self.read_each, (before_groups + run.groups) * self.read_each)
            before_channels, before_groups = made[1], before_groups + run.groups
            inputs: list[int | str | Array | None] = list(self.bound.present)
            for index, axis, bounds in self._parts(made, used):
                region = read[index]
                assert region is not None
                inner = Region.full(region.shape).replace(axis, span(bounds))
                nodes.extend(cut(index, f"run_{n}.{index}", inner, region.shape, self.bound.opset))
                inputs[index] = f"run_{n}.{index}"
            own = {**attributes, "group": run.groups}
            nodes.append(LocalNode(op.op_type, tuple(inputs), (f"run_{n}",), own, op.domain))
        whole = tuple(f"run_{n}" for n in range(len(runs)))
        return (*nodes, LocalNode("Concat", whole, (0,), {"axis": 1}))

    def work(self, computed: Outputs) -> float:
        size = computed[0].size
        return 2.0 * size * self.read_each * prod(self.kernel) + size * self.bound.has(
            self.places.channels[0]
        )

    def _channels(self, made: Span) -> Span:
        """Returns the input channels of the groups that `made` touches."""
        groups = round_out(made, self.made_each, self.bound.output[1])
        return span(
            *(
                (i.start // self.made_each * self.read_each, i.stop // self.made_each * self.read_each)
                for i in groups
            )
        )

    def _parts(
        self, made: tuple[int, int], used: tuple[int, int]
    ) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Yields (input, axis, bounds) for each part of the operator's cropped inputs that one run takes."""
        yield self.places.x, 1, used
        yield self.places.w, 0, made
        for index in self._per_channel:
            yield index, 0, made
        for index in self.places.outputs:
            if self.bound.has(index):
                yield index, 1, made


class TransposedConvolution(Summing):
    """ConvTranspose: X [batch, channel, space...], W [channel, output channel of the group, kernel...]."""

    family = "conv"

    def __init__(self, bound: BoundOperator) -> None:
        self.bound = bound
        x, w = bound.shape(0), bound.shape(1)
        self.groups = int(bound.attribute("group", 1))
        self.read_each, self.made_each = x[1] // self.groups, w[1]
        self.quantum = self.made_each if self.groups > 1 else 1
        self.kernel = w[2:]
        self.stretches: tuple[TransposedWindow, ...] = stretches(bound, self.kernel, x[2:], bound.output[2:])
        quanta = [1, self.quantum] + [1] * len(self.kernel)
        names = axis_names(len(x), spatial=True)
        self._axes = split_axes(bound.output, range(len(x)), names, quanta)
        if self.groups == 1 and x[1] > 1:
            self._axes += (Axis("inner", 1, x[1], reducer="sum"),)

    def widen(self, outputs: Outputs) -> Outputs:
        region = outputs[0]
        channel = round_out(region.spans[1], self.quantum, self.bound.output[1])
        return {0: Region((region.spans[0], channel, *region.hull().spans[2:]))}

    def reads(self, computed: Outputs) -> Reads:
        batch, channel, *space = computed[0].spans
        read = (span(s.read(one[0])) for s, one in zip(self.stretches, space, strict=True))
        weights = Region.full(self.bound.shape(1))
        used = span((0, self.bound.shape(0)[1]))
        if self.part is not None:
            used = (self.part,)
            weights = weights.replace(0, used).replace(1, channel)
        elif self.groups == 1:
            weights = weights.replace(1, channel)
        else:
            each = self.made_each
            used = span(
                *((i.start // each * self.read_each, i.stop // each * self.read_each) for i in channel)
            )
            weights = weights.replace(0, used)
        given = _local_inputs(self.bound, self.part, (2,))
        found = (Region((batch, used, *read)), weights, Region((channel,)))
        return tuple(None if index is None else region for index, region in zip(given, found, strict=False))

    def nodes(self, computed: Outputs) -> Local:
        space = [one[0] for one in computed[0].spans[2:]]
        pads = [s.pads(out) for s, out in zip(self.stretches, space, strict=True)]
        attributes = self.bound.with_attributes(
            auto_pad=None,
            output_shape=None,
            kernel_shape=list(self.kernel),
            pads=[begin for begin, _, _ in pads] + [end for _, end, _ in pads],
            output_padding=[extra for _, _, extra in pads],
            group=1 if self.groups == 1 else span_size(computed[0].spans[1]) // self.made_each,
        )
        op = self.bound.operator
        return (
            LocalNode(op.op_type, _local_inputs(self.bound, self.part, (2,)), (0,), attributes, op.domain),
        )

    def work(self, computed: Outputs) -> float:
        strides = prod(s.stride for s in self.stretches)
        return 2.0 * computed[0].size * self.read_each * prod(self.kernel) / strides


def _runs(wanted: Span, groups: int, each: int) -> Iterator[GroupRun]:
    """Yields the wanted output channels as runs of groups; groups of which nothing is wanted are left out."""
    if groups == 1:
        yield GroupRun(1, span_size(wanted))
        return
    last: GroupRun | None = None
    for group in range(wanted[0].start // each, -(-wanted[-1].stop // each)):
        count = span_size(span_intersect(wanted, span((group * each, (group + 1) * each))))
        if not count:
            continue
        if last is not None and last.count == count:
            last = GroupRun(last.groups + 1, count)
            continue
        if last is not None:
            yield last
        last = GroupRun(1, count)
    if last is not None:
        yield last


def _local_inputs(bound: BoundOperator, part: Interval | None, once: Sequence[int]) -> tuple[int | None, ...]:
    """Returns the inputs of the local node, in their places. Only the first part of a sum reads the inputs in
    `once`."""
    later = part is not None and part.start > 0
    return tuple(None if later and n in once else index for n, index in enumerate(bound.present))


def _family(groups: int, read_each: int, kernel: Sequence[int]) -> str:
    if groups > 1 and read_each == 1:
        return "depthwise"
    return "pointwise" if prod(kernel) == 1 else "conv"


def _declare(bound: BoundOperator, places: ConvolutionInputs) -> Derived:
    if any(pad < 0 for pad in bound.integers("pads") or ()):
        return WholeOperator(bound, "it has negative pads")
    return Convolution(bound, places)


def conv(bound: BoundOperator) -> Derived:
    return _declare(bound, ConvolutionInputs(once=(2,)))


def fused_conv(bound: BoundOperator) -> Derived:
    """Declares FusedConv of com.microsoft: Conv, an addend of the output's shape, and an activation."""
    if bound.has(3) and bound.shape(3) != bound.output:
        return WholeOperator(bound, "its addend is broadcast")
    return _declare(bound, ConvolutionInputs(outputs=(3,)))


def qlinear_conv(bound: BoundOperator) -> Derived:
    """Declares QLinearConv with the inputs x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias."""
    return _declare(bound, ConvolutionInputs(x=0, w=3, channels=(8, 4, 5)))


def conv_integer(bound: BoundOperator) -> Derived:
    """Declares ConvInteger with the inputs x, w, x_zero, w_zero."""
    return _declare(bound, ConvolutionInputs(channels=(3,)))


def conv_transpose(bound: BoundOperator) -> Derived:
    if any(pad < 0 for pad in bound.integers("pads") or ()):
        return WholeOperator(bound, "it has negative pads")
    return TransposedConvolution(bound)


DECLARATIONS = {
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "QLinearConv": qlinear_conv,
}
MICROSOFT = {"FusedConv": fused_conv}
