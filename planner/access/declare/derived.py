"""Derived: what every declaration gets for free; Whole: the access of an operator that is not declared.

A declaration says how far a wanted region must be widened before the operator can make it (an axis that
must be whole, a group of channels), what is read to make the widened region, and the nodes that make it.
From these three come `needs` and `localize` for any region whatever: what was made too much is cut off. Pure.
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
"""Per input what is read; None where nothing is."""


class Derived(ABC):
    """Base of all declarations; implements `language.Access`."""

    opaque: str | None = None
    family: str = "other"
    bound: BoundOperator

    @abstractmethod
    def axes(self) -> tuple[Axis, ...]: ...

    def reduction(self, axis: Axis) -> Reduction:
        """InternalError where nothing is reduced along it: `axes()` of such a declaration say so."""
        op = self.bound.operator
        raise InternalError(f"{op.op_type} {op.name!r} is not reduced along {axis.name!r}")

    @abstractmethod
    def widen(self, outputs: Outputs) -> Outputs:
        """The smallest regions around `outputs` (none empty) that `nodes` can make; of the same outputs."""

    @abstractmethod
    def reads(self, computed: Outputs) -> Reads:
        """What is read to make widened regions."""

    @abstractmethod
    def nodes(self, computed: Outputs) -> Local:
        """Nodes that make widened regions from what `reads` says."""

    @abstractmethod
    def work(self, computed: Outputs) -> float:
        """FLOPs of `nodes(computed)`."""

    def needs(self, outputs: Outputs) -> Reads:
        wanted = _there(outputs)
        if not wanted:
            return (None,) * len(self.bound.inputs)
        return self.reads(self.widen(wanted))

    def localize(self, outputs: Outputs) -> Local:
        wanted = {index: region for index, region in outputs.items() if not region.is_empty}
        nodes = [self._nothing(index, region) for index, region in outputs.items() if region.is_empty]
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
        wanted = _there(outputs)
        return float(self.work(self.widen(wanted))) if wanted else 0.0

    def _nothing(self, index: int, region: Region) -> LocalNode:
        name = self.bound.dtype(index)
        empty: Array = np.zeros(region.shape, object if name == "string" else numpy_dtype(name))
        return LocalNode("Identity", (empty,), (index,))


def _there(outputs: Outputs) -> Outputs:
    """Those that are not empty: nearly always all."""
    for region in outputs.values():
        if region.is_empty:
            return {index: region for index, region in outputs.items() if not region.is_empty}
    return outputs


class WholeOperator(Derived):
    """Runs as it is, on one device. Whoever wants a part of its outputs gets it cut out of the whole."""

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
        """A value without a known shape, or without elements, is never cut."""
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
    """The operator itself, with its own attributes, making the outputs `wanted`; others that the model names are
    made for nobody, as few operators may leave outputs out."""
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
    """The axes in `kept` that can be cut in two at their quantum at least."""
    called = names or axis_names(len(shape))
    found = []
    for index in kept:
        quantum = quanta[index] if quanta else 1
        if shape[index] > quantum:
            found.append(Axis(called[index], index, shape[index], quantum))
    return tuple(found)


def rounded(one: Span, quantum: int, extent: int) -> Span:
    """`one` widened to multiples of `quantum` (and to the end of the axis at most)."""
    if quantum == 1:
        return one
    return span(*((i.start // quantum * quantum, min(-(-i.stop // quantum) * quantum, extent)) for i in one))
