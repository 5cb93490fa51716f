"""The language of access maps: what every declaration answers. Rules only; numpy, no ONNX Runtime.

The law, tested with random regions for every declared operator:
`run(localize(R), crop(inputs, needs(R))) == crop(run(operator, inputs), R)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgepart.planner.region import Array, Region

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


class Access(Protocol):
    """A declaration bound to one operator of one graph (shapes, attributes and constant inputs are known)."""

    opaque: str | None
    """Why it cannot be split at all; None where it can. An opaque operator is only ever asked for full
    regions."""

    def axes(self) -> tuple[Axis, ...]:
        """The ways to split it, none for an opaque operator."""

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
