"""The language of access maps: what every declaration answers. Rules only; numpy, no ONNX Runtime.

The law, tested with random regions for every declared operator:
`run(localize(R), crop(inputs, needs(R))) == crop(run(operator, inputs), R)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgepart.planner.region import Array, Interval, Region

Outputs = Mapping[int, Region]
"""Per index of an operator's output, the region that is wanted; outputs that are not named are not wanted."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A way to split an operator: an axis of its output 0, or a reduced one."""

    name: str
    """"batch", "channel", "height", "width", "depth", "sequence", "head", "feature", "axis0" ...; what
    --axis takes."""
    index: int
    """Axis of output 0 (of the inner sum where it is reduced)."""
    extent: int
    quantum: int = 1
    """Cuts fall on multiples of this (channels of a group)."""
    reducer: str | None = None
    """None for an axis of the output; "sum", "max" ... for a reduced one, whose parts are combined by it."""
    places: tuple[int | None, ...] = ()
    """Of an operator with several outputs: per output, which of its axes this is; None for an output that lacks
    it, and that one device makes whole. () where it is `index` in every output."""

    def place(self, output: int) -> int | None:
        """The axis of output `output` that this is; None where it has none."""
        return self.places[output] if self.places else self.index


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One ONNX node of the local computation."""

    op_type: str
    inputs: tuple[int | str | Array | None, ...]
    """An int is the operator's input with that index, cropped to what `needs` said; a str the output of an
    earlier local node; an array is a constant; None is an input left out."""
    outputs: tuple[int | str | None, ...]
    """An int is the operator's output with that index, exactly the region wanted; a str is for later local
    nodes."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""


Local = tuple[LocalNode, ...]


@dataclass(frozen=True, slots=True)
class Addend:
    """A tensor that one device makes of its part of a reduced axis; what devices made is then combined."""

    shape: tuple[int, ...]
    dtype: str
    """ONNX element type in lower case."""


@dataclass(frozen=True)
class Reduction:
    """How a reduced axis is divided. The part [a, b) of it is an operator of its own, with the inputs of the whole one
    and the addends as outputs; combining takes every part's addends, part after part, then the inputs in `again`, and
    makes output 0. Both are accesses themselves, so that they can be split along the axes that are kept."""

    addends: tuple[Addend, ...]
    """Of each part: one for a sum; the maximum and the sum of exponentials for a numerically safe Softmax."""
    part: Callable[[Interval], Access]
    combine: Callable[[tuple[Interval, ...]], Access]
    again: tuple[int, ...] = ()
    """Inputs of the operator that combining reads as well."""


class Access(Protocol):
    """A declaration bound to one operator of one graph (shapes, attributes and constant inputs are known)."""

    opaque: str | None
    """Why it cannot be split at all; None where it can. An opaque operator is only ever asked for full
    regions."""

    def axes(self) -> tuple[Axis, ...]:
        """The ways to split it, none for an opaque operator."""

    def reduction(self, axis: Axis) -> Reduction:
        """How one of `axes()` that has a reducer is divided."""

    def needs(self, outputs: Outputs) -> tuple[Region | None, ...]:
        """Per input, the region that is read to write `outputs`; None where that input is not read from
        outside (left out, or replaced by a constant in `localize`). A region is never bigger than the
        input."""

    def localize(self, outputs: Outputs) -> Local:
        """Nodes that compute exactly `outputs` from exactly `needs(outputs)`, in the model's own opset."""

    def flops(self, outputs: Outputs) -> float:
        """1 multiply-add = 2; element-wise work counts 1 per element and operation."""

    @property
    def family(self) -> str:
        """For the cost model: "conv", "depthwise", "pointwise" (1x1 conv), "gemm", "pool", "elementwise",
        "move" (views and copies), "reduce", "other"."""
