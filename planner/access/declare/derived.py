"""Derived: the base class of declarations, and WholeOperator, the access of an operator without one. Rules only.

A declaration says how far a wanted region must be widened before the operator can make it (an axis that must be whole,
a group of channels), what is read to make the widened region, and which nodes make it. `needs` and `localize` follow
from these three for every region: what is computed beyond the wanted region is cut off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from edgepart.planner.access.declare.bound import BoundOperator, Shape, axis_names, numpy_dtype
from edgepart.planner.access.declare.cut_nodes import cut
from edgepart.planner.access.declare.protocol import Axis, Local, LocalNode, Outputs, Reduction
from edgepart.planner.errors import InternalError
from edgepart.planner.region import Array, Region, Span, span

Reads = tuple[Region | None, ...]
"""The region that is read of each input; None where nothing is read."""


class Derived(ABC):
    """The base class of all declarations; implements `protocol.Access`."""

    opaque: str | None = None
    family: str = "other"
    bound: BoundOperator

    @abstractmethod
    def axes(self) -> tuple[Axis, ...]: ...

    def reduction(self, axis: Axis) -> Reduction:
        """Raises InternalError, as this declaration reduces no axis. Declarations with a reduced axis in
        `axes()` override this method."""
        op = self.bound.operator
        raise InternalError(f"{op.op_type} {op.name!r} is not reduced along {axis.name!r}")

    @abstractmethod
    def widen(self, outputs: Outputs) -> Outputs:
        """Returns the smallest regions around `outputs` (none of them empty) that `nodes` can make, for the same
        outputs."""

    @abstractmethod
    def reads(self, computed: Outputs) -> Reads:
        """Returns the regions of the inputs that are read to make the widened regions `computed`."""

    @abstractmethod
    def nodes(self, computed: Outputs) -> Local:
        """Returns nodes that make the widened regions `computed` from what `reads` returns."""

    @abstractmethod
    def work(self, computed: Outputs) -> float:
        """Returns the FLOPs of `nodes(computed)`."""

    def needs(self, outputs: Outputs) -> Reads:
        wanted = _nonempty(outputs)
        if not wanted:
            return (None,) * len(self.bound.inputs)
        return self.reads(self.widen(wanted))

    def localize(self, outputs: Outputs) -> Local:
        wanted = {index: region for index, region in outputs.items() if not region.is_empty}
        nodes = [self._empty_node(index, region) for index, region in outputs.items() if region.is_empty]
        if not wanted:
            return tuple(nodes)
        computed = self.widen(wanted)
        cropped = {index: f"computed_{index}" for index in wanted if computed[index] != wanted[index]}
        for node in self.nodes(computed):
            names = tuple(cropped.get(o, o) if isinstance(o, int) else o for o in node.outputs)
            nodes.append(replace(node, outputs=names))
        for index, name in cropped.items():
            inner = wanted[index].within(computed[index])
            nodes.extend(cut(name, index, inner, computed[index].shape, self.bound.opset))
        return tuple(nodes)

    def flops(self, outputs: Outputs) -> float:
        wanted = _nonempty(outputs)
        return float(self.work(self.widen(wanted))) if wanted else 0.0

    def _empty_node(self, index: int, region: Region) -> LocalNode:
        name = self.bound.dtype(index)
        empty: Array = np.zeros(region.shape, object if name == "string" else numpy_dtype(name))
        return LocalNode("Identity", (empty,), (index,))


def _nonempty(outputs: Outputs) -> Outputs:
    """Returns the outputs whose regions are not empty. If that is all of them, as usual, returns the mapping
    itself."""
    for region in outputs.values():
        if region.is_empty:
            return {index: region for index, region in outputs.items() if not region.is_empty}
    return outputs


class WholeOperator(Derived):
    """An operator that runs unchanged on one device. A part of its outputs is cut out of the whole."""

    def __init__(self, bound: BoundOperator, reason: str) -> None:
        self.bound = bound
        self.opaque = reason

    def axes(self) -> tuple[Axis, ...]:
        return ()

    def widen(self, outputs: Outputs) -> Outputs:
        return {index: Region.full(self.bound.outputs[index]) for index in outputs}

    def reads(self, computed: Outputs) -> Reads:
        names = self.bound.operator.inputs
        return tuple(
            Region.full(shape) if name else None for name, shape in zip(names, self.bound.inputs, strict=True)
        )

    def nodes(self, computed: Outputs) -> Local:
        return (self._node(computed),)

    def localize(self, outputs: Outputs) -> Local:
        """Returns the operator alone if its outputs are wanted whole, so that a value without a known shape,
        or without elements, is never cut."""
        if all(region == Region.full(self.bound.outputs[index]) for index, region in outputs.items()):
            return (self._node(outputs),)
        return super().localize(outputs)

    def needs(self, outputs: Outputs) -> Reads:
        return self.reads(outputs)

    def work(self, computed: Outputs) -> float:
        return float(sum(region.size for region in computed.values()))

    def _node(self, wanted: Outputs) -> LocalNode:
        op = self.bound.operator
        inputs = tuple(index if name else None for index, name in enumerate(op.inputs))
        return LocalNode(op.op_type, inputs, _outputs(self.bound, wanted), op.attributes, op.domain)


def local_node(
    bound: BoundOperator,
    wanted: Iterable[int] = (0,),
    inputs: Sequence[int | str | Array | None] | None = None,
) -> LocalNode:
    """Returns a node that is the operator itself, with its own attributes, and makes the outputs `wanted`.
    The node also makes the other outputs that the model names, which nothing reads, because few operators may
    leave outputs out."""
    op = bound.operator
    given = bound.present if inputs is None else tuple(inputs)
    return LocalNode(op.op_type, given, _outputs(bound, wanted), op.attributes, op.domain)


def _outputs(bound: BoundOperator, wanted: Iterable[int]) -> tuple[int | str | None, ...]:
    made = frozenset(wanted)
    return tuple(
        (index if index in made else f"unwanted_{index}") if name else None
        for index, name in enumerate(bound.operator.outputs)
    )


def split_axes(
    shape: Shape, kept: Iterable[int], names: Sequence[str] | None = None, quanta: Sequence[int] | None = None
) -> tuple[Axis, ...]:
    """Returns the axes of `kept` that are longer than their quantum, so that they can be cut."""
    called = names or axis_names(len(shape))
    found = []
    for index in kept:
        quantum = quanta[index] if quanta else 1
        if shape[index] > quantum:
            found.append(Axis(called[index], index, shape[index], quantum))
    return tuple(found)


def round_out(one: Span, quantum: int, extent: int) -> Span:
    """Returns `one` widened to multiples of `quantum`, and at most to `extent`, the end of the axis."""
    if quantum == 1:
        return one
    return span(*((i.start // quantum * quantum, min(-(-i.stop // quantum) * quantum, extent)) for i in one))
