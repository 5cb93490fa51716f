"""Sampling: operators that read an image at coordinates that other inputs give. The spatial axes of the image are read
whole; the output runs along the coordinates. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads
from edgepart.planner.access.declare.bound import BoundOperator, Shape, axis_names, numpy_dtype
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.derived import Derived, WholeOperator, local_node
from edgepart.planner.access.declare.protocol import Local, LocalNode, Outputs
from edgepart.planner.access.declare.window import Window, windows
from edgepart.planner.region import Array, Region, Span, span_size

_MISFIT = "its inputs do not fit each other"


def grid_sample(bound: BoundOperator) -> Derived:
    """Declares GridSample: X (N, C, space of the image ...) is sampled at grid (N, space of the output ...,
    coordinates)."""
    rank = len(bound.output)
    if not len(bound.shape(0)) == len(bound.shape(1)) == rank > 2:
        return WholeOperator(bound, _MISFIT)
    image: AxisReads = [Along(0), Along(1), *[None] * (rank - 2)]
    grid: AxisReads = [Along(0), *map(Along, range(2, rank)), None]
    each = 4.0 if "cubic" in bound.text("mode", "linear") else 2.0
    names = axis_names(rank, spatial=True)
    return Aligned(bound, [image, grid], family="other", work=2.0 * each ** (rank - 2), names=names)


def roi_pool(bound: BoundOperator) -> Derived:
    """Declares RoiAlign and MaxRoiPool, which make a small image for every region of interest (axis 0) and channel."""
    if len(bound.shape(0)) != 4 or len(bound.output) != 4 or not bound.shape(1):
        return WholeOperator(bound, _MISFIT)
    image: AxisReads = [None, Along(1), None, None]
    rois: list[AxisReads | None] = [
        [Along(0), *[None] * (len(shape) - 1)] for shape in bound.inputs[1:] if shape
    ]
    names = ("roi", *axis_names(4)[1:])
    ratio = max(int(bound.attribute("sampling_ratio", 0)), 1)
    return Aligned(bound, [image, *rois], whole=(2, 3), work=8.0 * ratio * ratio, family="other", names=names)


class DeformConv(Aligned):
    """A convolution whose taps are moved by offsets, so that they may lie anywhere in the image. A part of the output
    is computed as a convolution with another stride, with offsets that correct the difference."""

    def __init__(
        self, bound: BoundOperator, reads: Sequence[AxisReads | None], channels: Channels, moves: bool
    ) -> None:
        shape, kernel = bound.shape(0), channels.kernel
        super().__init__(
            bound,
            reads,
            family="conv",
            work=2.0 * channels.read_each * prod(kernel),
            names=axis_names(len(shape), spatial=True),
            quanta={1: channels.quantum},
            whole=() if moves else range(2, len(shape)),
        )
        self.channels = channels
        self.steps = windows(bound, kernel, shape[2:])

    def nodes(self, computed: Outputs) -> Local:
        region = computed[0]
        groups = max(self.channels.groups * span_size(region.spans[1]) // self.bound.output[1], 1)
        if region.shape[2:] == self.bound.output[2:]:
            attributes = self.bound.with_attributes(group=groups)
            return (replace(local_node(self.bound), attributes=attributes),)
        moved = [
            SampledAxis.to(w, one, extent)
            for w, one, extent in zip(self.steps, region.spans[2:], self.bound.output[2:], strict=True)
        ]
        attributes = self.bound.with_attributes(
            group=groups,
            strides=[one.stride for one in moved],
            pads=[w.pad_begin for w in self.steps] + [one.pad_end for one in moved],
        )
        corrected, offsets = self._correct_offsets(moved)
        inputs = tuple(offsets if n == 2 else n for n in self.bound.present)
        return (*corrected, replace(local_node(self.bound, inputs=inputs), attributes=attributes))

    def _correct_offsets(self, moved: Sequence[SampledAxis]) -> tuple[Local, int | str]:
        """Returns nodes that correct the offsets, and the value that holds them. The offsets' channels are (group, tap,
        axis), each with the output's space."""
        found: list[LocalNode] = []
        offsets: int | str = 2
        taps = self.bound.shape(2)[1] // len(moved)
        for axis, one in enumerate(moved):
            if not any(one.corrections):
                continue
            of_axis = np.tile(np.arange(len(moved)) == axis, taps)[:, None]
            added = np.asarray(of_axis * np.asarray(one.corrections), numpy_dtype(self.bound.dtype(0)))
            shape = [1, added.shape[0], *(added.shape[1] if n == axis else 1 for n in range(len(moved)))]
            found.append(LocalNode("Add", (offsets, added.reshape(shape)), (f"offsets_{axis}",)))
            offsets = f"offsets_{axis}"
        return tuple(found), offsets


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of a deformable convolution."""

    groups: int
    quantum: int
    """Output channels are cut at multiples of this number."""
    read_each: int
    """The number of input channels that one output channel reads."""
    kernel: Shape


@dataclass(frozen=True, slots=True)
class SampledAxis:
    """One axis of a convolution that makes exactly some of the positions of another convolution's output,
    from all of its input. Position `i` of its output lies `corrections[i]` input elements before the wanted
    position."""

    stride: int
    pad_end: int
    corrections: tuple[int, ...]

    @staticmethod
    def to(window: Window, wanted: Span, extent: int) -> SampledAxis:
        count = span_size(wanted)
        if count == extent:
            return SampledAxis(window.stride, window.pad_end, (0,) * count)
        room = window.extent + window.pad_begin + window.pad_end - window.reach
        stride = -(-room // (count - 1)) if count > 1 else room + 1
        more = stride * (count - 1) - room if count > 1 else 0
        places = (place for one in wanted for place in range(one.start, one.stop))
        corrections = tuple(place * window.stride - n * stride for n, place in enumerate(places))
        return SampledAxis(stride, window.pad_end + more, corrections)


def deform_conv(bound: BoundOperator) -> Derived:
    """Declares DeformConv with the inputs X, W, offset, B, mask. The space of offset and mask runs along the
    output's."""
    x, w, rank = bound.shape(0), bound.shape(1), len(bound.output)
    if not len(x) == len(w) == len(bound.shape(2)) == rank > 2:
        return WholeOperator(bound, _MISFIT)
    groups, parts = int(bound.attribute("group", 1)), int(bound.attribute("offset_group", 1))
    counts = {len(bound.integers(name) or x[2:]) for name in ("kernel_shape", "strides", "dilations")}
    padded = len(bound.integers("pads") or x[2:] * 2)
    if groups < 1 or w[0] % groups or x[1] != w[1] * groups or counts != {rank - 2} or padded != 2 * rank - 4:
        return WholeOperator(bound, _MISFIT)
    each = w[0] // groups
    channels = Channels(groups, each if groups > 1 else 1, w[1], bound.integers("kernel_shape") or w[2:])
    if groups > 1 and parts > 1:  # In a part, offsets would apply to other channels than in the whole.
        channels = replace(channels, quantum=w[0])
    image = Along(1, times=x[1] // groups, per=each) if groups > 1 else None
    places = [Along(axis) for axis in range(2, rank)]
    reads: list[AxisReads | None] = [
        [Along(0), image, *[None] * (rank - 2)],
        [Along(1), *[None] * (rank - 1)],
        [Along(0), None, *places],
        [Along(1)],
        [Along(0), None, *places],
    ]
    # Half precision would round offsets that reach across the image.
    moves = bound.dtype(0) in ("float", "double")
    return DeformConv(bound, reads[: len(bound.inputs)], channels, moves)


def max_unpool(bound: BoundOperator) -> Derived:
    """Declares MaxUnpool: each value goes to the position in the whole output that its index (from MaxPool) names."""
    fits = bound.shape(0) == bound.shape(1) and bound.shape(0)[:2] == bound.output[:2]
    if not fits or len(bound.output) < 3 or not _own_planes(bound):
        return WholeOperator(bound, "its indices may point anywhere in the whole output")
    return Unpool(bound)


def _own_planes(bound: BoundOperator) -> bool:
    """Whether every index is known to lie in its own sample and channel."""
    plane = prod(bound.output[2:])
    if (known := bound.constant(1)) is not None:
        first = np.arange(prod(known.shape[:2])).reshape(*known.shape[:2], *[1] * (known.ndim - 2)) * plane
        return bool(((known >= first) & (known < first + plane)).all())
    source = bound.graph.producers.get(bound.operator.inputs[1])
    if source is None or source.op_type != "MaxPool" or source.domain not in ("", "ai.onnx"):
        return False
    return bound.graph.shape_of(source.inputs[0]) == bound.output


class Unpool(Aligned):
    """MaxUnpool with indices that stay in their own sample and channel. Space is whole."""

    def __init__(self, bound: BoundOperator) -> None:
        rank = len(bound.output)
        planes: AxisReads = [Along(0), Along(1), *[None] * (rank - 2)]
        reads: list[AxisReads | None] = [planes, planes, None]
        names = axis_names(rank, spatial=True)
        super().__init__(
            bound, reads[: len(bound.inputs)], whole=range(2, rank), family="move", work=1.0, names=names
        )

    def nodes(self, computed: Outputs) -> Local:
        inputs: list[int | str | Array | None] = [0, 1]
        if self.bound.has(2):
            inputs.append(integers(computed[0].shape))
        shift = self._shift(computed[0])
        if not shift.any():
            return (local_node(self.bound, inputs=inputs),)
        inputs[1] = "inside"
        return (LocalNode("Sub", (1, shift), ("inside",)), local_node(self.bound, inputs=inputs))

    def _shift(self, region: Region) -> Array:
        """Returns the number by which an index is smaller in the part than in the whole, for each sample and
        channel."""
        samples, channels, *space = self.bound.output
        planes = np.arange(samples * channels, dtype=np.int64).reshape(samples, channels)
        wanted = Region(region.spans[:2]).crop(planes)
        shift = (wanted - np.arange(wanted.size).reshape(wanted.shape)) * prod(space)
        return np.asarray(shift.reshape(*wanted.shape, *[1] * len(space)))


DECLARATIONS: dict[str, Callable[[BoundOperator], Derived]] = {
    "DeformConv": deform_conv,
    "GridSample": grid_sample,
    "MaxRoiPool": roi_pool,
    "MaxUnpool": max_unpool,
    "RoiAlign": roi_pool,
}
OPAQUE = {("", "NonMaxSuppression"): "it selects as many boxes as their scores and overlaps leave"}
