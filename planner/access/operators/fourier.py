"""Fourier transforms: DFT, STFT, and the tables that go with them. The axis that is transformed is whole; each frame of a
signal reads its own part of the signal. Rules only."""

from __future__ import annotations

from math import log2

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator
from edgepart.planner.access.declare.protocol import Outputs
from edgepart.planner.access.declare.window import Window
from edgepart.planner.region import Region, span_hull


def dft(bound: BoundOperator) -> Derived:
    """Declares DFT along one axis; the last axis holds real and imaginary parts. The axis is an attribute in opset 17,
    and an input since opset 20."""
    rank = len(bound.output)
    axis = int(bound.attribute("axis", 1)) if bound.version < 20 else -2
    if bound.has(2):
        given = bound.constant(2)
        if given is None:
            return WholeOperator(bound, "its axis is known only at run time")
        axis = int(given.reshape(-1)[0])
    whole = (axis % rank, rank - 1)
    signal: AxisReads = [None if n in whole else Along(n) for n in range(rank)]
    work = 5 * log2(max(bound.output[whole[0]], 2))
    return Aligned(bound, [signal, *_all(bound)], whole=whole, family="other", work=work)


def _all(bound: BoundOperator) -> list[AxisReads | None]:
    """Returns how the inputs after the first are read: whole."""
    return [None if shape is None else [None] * len(shape) for shape in bound.inputs[1:]]


def stft(bound: BoundOperator) -> Derived:
    """Declares STFT: signal [batch, length, 1 or 2], frame_step, window, frame_length give [batch, frames, bins, 2]."""
    step, length = bound.constant(1), _frame_length(bound)
    work = 5 * log2(max(bound.output[2], 2))
    reads: list[AxisReads | None] = [[Along(0), None, None], *_all(bound)]
    if step is None or length is None:
        return Aligned(bound, reads, whole=(1, 2, 3), family="other", work=work)
    return Frames(bound, reads, Window(bound.shape(0)[1], length, int(step.reshape(-1)[0])), work)


def _frame_length(bound: BoundOperator) -> int | None:
    """Returns the length of a frame; None if it is known only at run time."""
    if bound.has(2):
        return bound.shape(2)[0]
    if bound.has(3):
        given = bound.constant(3)
        return None if given is None else int(given.reshape(-1)[0])
    return bound.shape(0)[1]


class Frames(Aligned):
    """STFT with frames at known positions: a frame reads the part of the signal under it."""

    def __init__(
        self, bound: BoundOperator, reads: list[AxisReads | None], frame: Window, work: float
    ) -> None:
        names = ("batch", "sequence", "bin", "part")
        super().__init__(bound, reads, whole=(2, 3), family="other", work=work, names=names)
        self.frame = frame

    def widen(self, outputs: Outputs) -> Outputs:
        region = super().widen(outputs)[0]
        return {0: region.replace(1, span_hull(region.spans[1]))}

    def reads(self, computed: Outputs) -> Reads:
        signal, *rest = super().reads(computed)
        assert isinstance(signal, Region)
        return (signal.replace(1, self.frame.read(computed[0].spans[1][0])), *rest)


DECLARATIONS = {"DFT": dft, "STFT": stft}

_TABLE = "it makes a small table by one formula from a size, most often when the model is loaded"

OPAQUE = {("", name): _TABLE for name in ("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix")}
