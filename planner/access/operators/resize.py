"""Resize and Upsample: interpolation along axes. A piece starts where output coordinates fall on input
elements as they do at the start of the whole, so the piece's coordinates are those of the whole, shifted. A
piece is made a little bigger than wanted, so that no interpolation reaches beyond the piece, and then cut.
Rules only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor

import numpy as np

from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, local_node, split_axes
from edgepart.planner.access.declare.protocol import Axis, Local, Outputs
from edgepart.planner.region import Array, Region, Span, span, span_hull

_REACH = {"nearest": (0, 1), "linear": (0, 2), "cubic": (1, 3)}
"""The numbers of elements that a mode reads before the rounded-down coordinate, and from that coordinate on;
nearest may round up."""


@dataclass(frozen=True, slots=True)
class Scale:
    """One axis of a Resize. `ratio`: output elements for each input element; None if the axis cannot be cut."""

    extent: int
    output: int
    ratio: Fraction | None
    centred: bool
    reach: tuple[int, int]

    def widen(self, one: Span) -> Span:
        """Returns the span that is made for `one`: whole steps of the ratio, with everything that the
        interpolation reads."""
        if self.ratio == 1:
            return one
        if self.ratio is None:
            return span((0, self.output))
        hull = span_hull(one)[0]
        low = floor(self._source(hull.start)) - self.reach[0]
        high = ceil(self._source(hull.stop - 1)) + self.reach[1]
        step = self.ratio.denominator
        first, last = max(low // step, 0), -(-high // step)
        if last * step >= self.extent:
            return span((first * self.ratio.numerator, self.output))
        return span((first * self.ratio.numerator, last * self.ratio.numerator))

    def read(self, made: Span) -> Span:
        """Returns the span of the input that belongs to the widened span `made`."""
        if self.ratio == 1:
            return made
        if self.ratio is None or made[0].size == self.output:
            return span((0, self.extent))
        start = made[0].start / self.ratio
        stop = self.extent if made[0].stop == self.output else made[0].stop / self.ratio
        return span((int(start), int(stop)))

    def _source(self, out: int) -> Fraction:
        """Returns the input coordinate of an output element."""
        assert self.ratio is not None
        half = Fraction(1, 2) if self.centred else Fraction(0)
        return (out + half) / self.ratio - half


class Resize(Derived):
    """See the module's docstring. Local nodes get scales if the model gives scales, and sizes if it gives sizes."""

    family = "elementwise"

    def __init__(
        self, bound: BoundOperator, scales: Sequence[Scale], factors: Sequence[float] | None
    ) -> None:
        self.bound = bound
        self.scales = tuple(scales)
        self.factors = factors
        self.pytorch = _mode(bound) == "pytorch_half_pixel" and _is_plain_half_pixel(bound)
        cuttable = [axis for axis, one in enumerate(self.scales) if one.ratio is not None]
        self._axes = split_axes(bound.output, cuttable)
        reach = scales[0].reach if scales else (0, 0)
        resized = sum(one.ratio != 1 for one in scales)
        self._work = 2.0 * (sum(reach) or 1) ** resized

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def widen(self, outputs: Outputs) -> Outputs:
        spans = zip(self.scales, outputs[0].spans, strict=True)
        return {0: Region(tuple(scale.widen(one) for scale, one in spans))}

    def reads(self, computed: Outputs) -> Reads:
        spans = zip(self.scales, computed[0].spans, strict=True)
        region = Region(tuple(scale.read(one) for scale, one in spans))
        return (region, *([None] * (len(self.bound.inputs) - 1)))

    def nodes(self, computed: Outputs) -> Local:
        node = local_node(self.bound)
        dropped = ("axes", "keep_aspect_ratio_policy")
        attributes = {name: value for name, value in node.attributes.items() if name not in dropped}
        if self.pytorch:
            attributes["coordinate_transformation_mode"] = "half_pixel"
        return (replace(node, inputs=self._inputs(computed[0]), attributes=attributes),)

    def work(self, computed: Outputs) -> float:
        return float(self._work * computed[0].size)

    def _inputs(self, made: Region) -> tuple[int | Array | None, ...]:
        if self.bound.operator.op_type == "Upsample":
            return (0,) if self.bound.version < 9 else (0, self._factors())
        if self.bound.version < 11:
            return (0, self._factors())
        # Opset 11 cannot leave out roi and scales, so they are empty.
        none = None if self.bound.version > 12 else np.zeros(0, np.float32)
        if self.factors is None:
            return (0, none, none, integers(made.shape))
        return (0, none, self._factors())

    def _factors(self) -> Array:
        return np.asarray(self.factors, np.float32)


def resize(bound: BoundOperator) -> Derived:
    mode = bound.text("mode", "nearest")
    if mode == "bilinear":
        mode = "linear"
    if mode not in _REACH:
        return WholeOperator(bound, f"its mode {mode!r} is not known")
    axes = [axis % len(bound.output) for axis in bound.integers("axes") or range(len(bound.output))]
    factors = _scales(bound, axes)
    sized = bound.has(3) and bound.shape(3) != (0,)
    if factors is None and not sized:
        return WholeOperator(bound, "its scales are known only at run time")
    if _mode(bound) == "tf_crop_and_resize":
        return WholeOperator(bound, "it crops to a region of interest, which every element is counted from")
    scales = []
    for axis, (extent, output) in enumerate(zip(bound.shape(0), bound.output, strict=True)):
        factor = None if factors is None else factors[axis]
        ratio = _ratio(bound, extent, output, factor)
        scales.append(Scale(extent, output, ratio, _is_centred(bound), _REACH[mode]))
    return Resize(bound, scales, factors)


def _scales(bound: BoundOperator, axes: Sequence[int]) -> list[float] | None:
    """Returns a factor for each axis of the tensor; None if the model gives sizes, or gives scales only at run time."""
    place = 2 if bound.operator.op_type == "Resize" and bound.version > 10 else 1
    found = bound.constant(place)
    given = bound.attribute("scales") if found is None else found.reshape(-1)
    if given is None or len(given) == 0:
        return None
    factors = [1.0] * len(bound.output)
    for axis, factor in zip(axes, given, strict=True):
        factors[axis] = float(factor)
    return factors


def _ratio(bound: BoundOperator, extent: int, output: int, factor: float | None) -> Fraction | None:
    if extent == output and factor in (None, 1.0):
        return Fraction(1)
    how = _mode(bound)
    local = ["half_pixel", "asymmetric", "tf_half_pixel_for_nn"]
    if _is_plain_half_pixel(bound):
        local.append("pytorch_half_pixel")
    stretched = bound.text("keep_aspect_ratio_policy", "stretch") == "stretch"
    if how not in local or bound.attribute("antialias") or not stretched:
        return None
    if factor is None:
        return Fraction(output, extent)
    ratio = Fraction(factor).limit_denominator(64)
    # With a factor that is not a short binary fraction, a piece would have other lengths and coordinates than the whole.
    exact = ratio.denominator & (ratio.denominator - 1) == 0 and float(ratio) == factor
    return ratio if exact else None


def _is_centred(bound: BoundOperator) -> bool:
    if bound.operator.op_type == "Upsample" or bound.version < 11:
        return False
    return _mode(bound) != "asymmetric"


def _mode(bound: BoundOperator) -> str:
    return bound.text("coordinate_transformation_mode", "half_pixel")


def _is_plain_half_pixel(bound: BoundOperator) -> bool:
    """Whether pytorch_half_pixel equals half_pixel on all axes. The two differ only along an axis with one
    output element, where pytorch_half_pixel reads element 0."""
    axes = zip(bound.shape(0), bound.output, strict=True)
    return all(output > 1 or extent == output for extent, output in axes)


DECLARATIONS = {"Resize": resize, "Upsample": resize}
