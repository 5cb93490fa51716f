"""Windows: the arithmetic of sliding windows along one axis, forwards (Window: convolution, pooling) and backwards
(TransposedWindow: transposed convolution). All formulas about kernels, strides, dilations and pads are here. Rules
only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.region import Interval, Span, span, span_hull


@dataclass(frozen=True, slots=True)
class Window:
    """The windows along one axis of a convolution or pooling. `extent` is the extent of the input."""

    extent: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    pad_begin: int = 0
    pad_end: int = 0

    @property
    def reach(self) -> int:
        """The number of input elements from a window's first to its last."""
        return (self.kernel - 1) * self.dilation + 1

    def bounds_of(self, out: Interval) -> tuple[int, int]:
        """Returns the bounds of the elements that the windows of `out` cover, padding included. The bounds
        may be negative, or beyond the extent.

        >>> Window(extent=8, kernel=3, pad_begin=1, pad_end=1).bounds_of(Interval(4, 8))
        (3, 9)
        """
        start = out.start * self.stride - self.pad_begin
        return start, (out.stop - 1) * self.stride - self.pad_begin + self.reach

    def read(self, out: Interval) -> Span:
        """Returns the input under the windows of `out`; () if they lie entirely in the padding."""
        start, stop = self.bounds_of(out)
        return span((max(start, 0), min(stop, self.extent)))

    def pads(self, out: Interval) -> tuple[int, int]:
        """Returns the padding to add at the beginning and the end of `read(out)`. The part of a window that
        hangs over the padded input does not count."""
        start, stop = self.bounds_of(out)
        return max(-start, 0), min(max(stop - self.extent, 0), self.pad_end)

    def hangs_over(self, out: Interval) -> bool:
        """Whether the last window ends beyond the padding, as ceil_mode allows."""
        return self.bounds_of(out)[1] > self.extent + self.pad_end

    def widen(self, wanted: Span, output_extent: int) -> Span:
        """Returns the interval that is made for `wanted`: its hull, or the whole axis if only padding would be read."""
        hull = span_hull(wanted)
        return hull if self.read(hull[0]) else span((0, output_extent))


def windows(bound: BoundOperator, kernel: Sequence[int], extents: Sequence[int]) -> tuple[Window, ...]:
    """Returns a Window for each spatial axis, from the attributes strides, dilations, pads and auto_pad."""
    rank = len(kernel)
    strides = bound.integers("strides") or (1,) * rank
    dilations = bound.integers("dilations") or (1,) * rank
    pads = bound.integers("pads") or (0,) * (2 * rank)
    how = bound.text("auto_pad", "NOTSET")
    found = []
    for axis, extent in enumerate(extents):
        begin, end = pads[axis], pads[axis + rank]
        window = Window(extent, kernel[axis], strides[axis], dilations[axis])
        if how == "VALID":
            begin = end = 0
        elif how.startswith("SAME"):
            begin, end = _same(window, how)
        found.append(
            Window(extent, window.kernel, window.stride, window.dilation, pad_begin=begin, pad_end=end)
        )
    return tuple(found)


def _same(window: Window, how: str) -> tuple[int, int]:
    """Returns the pads with which the output has ceil(extent / stride) elements; an odd element goes to the
    side that `how` names."""
    count = -(-window.extent // window.stride)
    total = max((count - 1) * window.stride + window.reach - window.extent, 0)
    less, more = total // 2, total - total // 2
    return (less, more) if how == "SAME_UPPER" else (more, less)


@dataclass(frozen=True, slots=True)
class TransposedWindow:
    """One axis of a transposed convolution: input `i` is spread over the outputs from `i * stride - pad_begin` on."""

    extent: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    pad_begin: int = 0

    def read(self, out: Interval) -> Interval:
        """Returns the inputs that reach `out`, of which at least one begins at or before it."""
        reach = (self.kernel - 1) * self.dilation
        first = -(-(out.start + self.pad_begin - reach) // self.stride)
        first = min(first, (out.start + self.pad_begin) // self.stride)
        last = (out.stop - 1 + self.pad_begin) // self.stride
        first = min(max(first, 0), self.extent - 1)
        return Interval(first, max(min(last, self.extent - 1), first) + 1)

    def pads(self, out: Interval) -> tuple[int, int, int]:
        """Returns the number of outputs of `read(out)` to cut off at the beginning, to cut off at the end,
        and to add at the end."""
        read = self.read(out)
        begin = read.start * self.stride - self.pad_begin
        end = (read.stop - 1) * self.stride - self.pad_begin + (self.kernel - 1) * self.dilation + 1
        return out.start - begin, max(end - out.stop, 0), max(out.stop - end, 0)


def stretches(
    bound: BoundOperator, kernel: Sequence[int], extents: Sequence[int], outputs: Sequence[int]
) -> tuple[TransposedWindow, ...]:
    """Returns a TransposedWindow for each spatial axis, from the attributes strides, dilations, pads, output_padding,
    output_shape and auto_pad."""
    rank = len(kernel)
    strides = bound.integers("strides") or (1,) * rank
    dilations = bound.integers("dilations") or (1,) * rank
    pads = bound.integers("pads") or (0,) * (2 * rank)
    extra = bound.integers("output_padding") or (0,) * rank
    how = bound.text("auto_pad", "NOTSET")
    fitted = bound.integers("output_shape") is not None or how.startswith("SAME")
    found = []
    for axis, extent in enumerate(extents):
        begin = 0 if how == "VALID" else pads[axis]
        if fitted:
            spread = (extent - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1 + extra[axis]
            total = max(spread - outputs[axis], 0)
            begin = total // 2 if how == "SAME_UPPER" else total - total // 2
        found.append(TransposedWindow(extent, kernel[axis], strides[axis], dilations[axis], begin))
    return tuple(found)
