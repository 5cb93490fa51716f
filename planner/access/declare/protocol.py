"""The protocol of access maps: what every declaration answers. Facts only.

Every declared operator keeps this law, which tests check with random regions:
`run(localize(R), crop(inputs, needs(R))) == crop(run(operator, inputs), R)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgepart.planner.region import Array, Interval, Region

Outputs = Mapping[int, Region]
"""The wanted region of each output, by its index; outputs that are not named are not wanted."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A way to split an operator: an axis of its output 0, or a reduced axis."""

    name: str
    """"batch", "channel", "height", "width", "depth", "sequence", "head", "feature", "axis0" ...: a value of
    the option --axis."""
    index: int
    """The axis of output 0; for a reduced axis, the axis of the inner sum."""
    extent: int
    quantum: int = 1
    """Cuts fall on multiples of this number (such as the channels of a group)."""
    reducer: str | None = None
    """The operation that combines the parts of a reduced axis ("sum", "max" ...); None for an axis of the
    output."""
    places: tuple[int | None, ...] = ()
    """For an operator with several outputs, the number of this axis in each output; None for an output
    without this axis, which one device makes whole. () if the number is `index` in every output."""
    each: tuple[int, ...] = ()
    """The elements of each output for a quantum of output 0, as the keys of a head are fewer than its queries. () if every
    output has as many."""

    def place(self, output: int) -> int | None:
        """Returns the number of this axis in output `output`; None if the output does not have the axis."""
        return self.places[output] if self.places else self.index

    def elements(self, output: int) -> int:
        """Returns the elements of output `output` for a quantum of output 0."""
        return self.each[output] if self.each else self.quantum


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One ONNX node of the local computation."""

    op_type: str
    inputs: tuple[int | str | Array | None, ...]
    """An int is the operator's input with that index, cropped to what `needs` returned; a str is the output of an
    earlier local node; an array is a constant; None is an input that is left out."""
    outputs: tuple[int | str | None, ...]
    """An int is the operator's output with that index, in exactly the wanted region; a str names a value for later
    local nodes; None is an output that is left out."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""


Local = tuple[LocalNode, ...]


@dataclass(frozen=True, slots=True)
class Addend:
    """A tensor that one device makes from its part of a reduced axis. The addends of all devices are then combined."""

    shape: tuple[int, ...]
    dtype: str
    """The ONNX element type, in lower case."""


@dataclass(frozen=True)
class Reduction:
    """How a reduced axis is divided. Each part is an operator of its own, with the inputs of the whole
    operator and the addends as outputs. Another operator combines the parts: it takes the addends of every
    part, part after part, then the inputs in `again`, and makes output 0. Both operators are accesses, so
    they can be split along the axes that are kept."""

    addends: tuple[Addend, ...]
    """The addends of each part: one for a sum; the maximum and the sum of exponentials for a numerically safe
    Softmax."""
    part: Callable[[Interval], Access]
    """Returns the operator that makes the addends of a part of the axis."""
    combine: Callable[[tuple[Interval, ...]], Access]
    """Returns the operator that combines the addends of all parts."""
    again: tuple[int, ...] = ()
    """The inputs of the whole operator that the combining operator reads as well."""


class Access(Protocol):
    """A declaration bound to one operator of one graph (shapes, attributes and constant inputs are known)."""

    opaque: str | None
    """The reason why the operator cannot be split at all; None if it can be split. Only full regions are
    asked of an opaque operator."""

    def axes(self) -> tuple[Axis, ...]:
        """Returns the axes along which the operator can be split; none for an opaque operator."""

    def reduction(self, axis: Axis) -> Reduction:
        """Returns how `axis`, which is one of `axes()` and has a reducer, is divided."""

    def needs(self, outputs: Outputs) -> tuple[Region | None, ...]:
        """Returns the region of each input that is read to write `outputs`; None where the input is not read (it is
        left out, or `localize` replaces it by a constant). A region is never bigger than the input."""

    def localize(self, outputs: Outputs) -> Local:
        """Returns nodes that compute exactly `outputs` from exactly `needs(outputs)`, in the model's own opset."""

    def flops(self, outputs: Outputs) -> float:
        """Returns the FLOPs for `outputs`: a multiply-add counts 2, element-wise work 1 per element and operation."""

    @property
    def family(self) -> str:
        """The kind of work, for the cost model: "conv", "depthwise", "pointwise" (1x1 conv), "gemm", "pool", "elementwise",
        "move" (views and copies), "reduce", "other"."""
