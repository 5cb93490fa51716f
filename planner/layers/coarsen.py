"""Coarsening (Moirai, section 3.2): operators that the runtime computes in one pass stay together, as one
layer. Rules as data.

A layer is the unit that a strategy decides about. Its **exits** are the tensors that operators outside it
read; the layer's choice divides these. All its other tensors are **pulled**: a device itself computes as much
of them as it needs, so that nothing inside a layer ever travels. Views and copies (Reshape, Concat, Transpose
...) are pulled by their readers.

A quantise/dequantise group (the DequantizeLinears of an operator's inputs, the operator, and the
QuantizeLinear after it) is one layer: only the quantised tensors between groups are ever cut or moved, which
keeps the rounding the same as in the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from edgepart.planner.access import accesses as accesses_of
from edgepart.planner.access.declare.cache import remember
from edgepart.planner.access.declare.protocol import Access, Axis
from edgepart.planner.layers.isomorphism import find_kinds
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Interval

DEQUANTIZE = frozenset({"DequantizeLinear"})
"""Operators that belong to their readers; each reader computes them again."""

QUANTIZE = frozenset({"QuantizeLinear"})
"""Operators that belong to the operator that writes their input."""

FOLLOWER_FAMILIES = frozenset({"elementwise"})
"""Families of operators that join the layer that writes their input, if input and output have the same shape."""

FOLLOWERS = frozenset({"BatchNormalization"})
"""Further operators that join that layer in the same way."""

PULLED_FAMILIES = frozenset({"move"})
"""Families of operators that compute nothing: each reader's device makes as much of their output as it needs."""


@dataclass(frozen=True)
class Layer:
    """Operators that a strategy decides about together."""

    number: int
    operators: tuple[Operator, ...]
    exits: tuple[str, ...]
    """Tensors that are read outside the layer or are outputs of the model; () for a layer that is pulled."""
    axes: tuple[Axis, ...]
    """The axes along which the exits can be divided without computing anything twice; indices are those of
    the exits."""
    opaque: bool
    """Whether the layer can only be placed whole."""
    places: Mapping[tuple[str, str], int | None] = field(default_factory=dict)
    """The axis of an exit that stands for an axis of the layer, by the names of axis and exit, if it is not
    at the axis' own index; None if the exit has no such axis."""
    each: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The elements of an exit for a quantum of an axis, by the names of axis and exit, if they are not the quantum."""
    reduced: tuple[tuple[str, Axis], ...] = ()
    """Operators of the layer that can be parted along a reduced axis, each with the axis."""
    combined: tuple[Axis, ...] = ()
    """Reduced axes that the exits have too (for example of a Softmax or a norm). The exits can be divided
    along them once the addends are combined."""

    def axis(self, name: str) -> Axis | None:
        """The axis `name` of the exits along which they can be divided, if necessary once its addends are
        combined; None if there is none."""
        return next((axis for axis in (*self.axes, *self.combined) if axis.name == name), None)

    def splits(self, name: str) -> bool:
        """Whether at least two devices can share the layer along the axis `name`, each on its own."""
        axis = next((axis for axis in self.axes if axis.name == name), None)
        return axis is not None and axis.extent >= 2 * axis.quantum

    def place(self, axis: Axis, name: str) -> int | None:
        """The position of the axis in the exit `name`; None if one device makes all of that exit."""
        return self.places.get((axis.name, name), axis.index)

    def bounds(self, axis: Axis, name: str, cut: tuple[int, int]) -> tuple[int, int]:
        """The elements of the exit `name` for the part of the axis from `cut[0]` to `cut[1]`, where cuts may fall."""
        each = self.each.get((axis.name, name), axis.quantum)
        start, stop = cut
        if each == axis.quantum:
            return cut
        return start // axis.quantum * each, -(-stop // axis.quantum) * each

    def reduces(self, name: str) -> tuple[str, Axis] | None:
        """The operator that can be parted along the reduced axis `name`, and the axis, if two devices can share it."""
        return next(((op, a) for op, a in self.reduced if a.name == name and a.extent >= 2 * a.quantum), None)

    def extent(self, name: str) -> int:
        """Length of the axis `name`; 0 if the layer does not have it."""
        axis = self.axis(name)
        return axis.extent if axis else 0

    @property
    def anchor(self) -> Operator:
        """The operator that characterises the layer."""
        return next((op for op in self.operators if op.op_type not in DEQUANTIZE), self.operators[0])


@dataclass(frozen=True)
class Coarse:
    """A graph and its layers."""

    graph: Graph
    accesses: Mapping[str, Access]
    """The declaration of each operator, which remembers its results."""
    layer_of: Mapping[str, int]
    """The number of each operator's layer."""
    declared: Mapping[str, Access]
    """The declaration of each operator without a memory, for questions that are asked only once."""
    kinds: Mapping[str, int]
    """A number for each operator that is equal for operators that are the same except for names."""
    _kept: dict[tuple[int, Axis], tuple[Axis, ...]] = field(default_factory=dict, compare=False, repr=False)
    """The results of `_kept_by`, by kind of the operator and reduced axis."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers by their numbers, which grow along the model."""
        members: dict[int, list[Operator]] = {}
        for op in self.graph.operators:
            members.setdefault(self.layer_of[op.name], []).append(op)
        return tuple(self._layer(number, tuple(members[number])) for number in range(len(members)))

    def _layer(self, number: int, operators: tuple[Operator, ...]) -> Layer:
        exits = tuple(
            name
            for op in operators
            if not self.is_pulled(op)
            for name in op.outputs
            if name and self._leaves(name, number)
        )
        opaque = any(self.accesses[op.name].opaque is not None for op in operators)
        if opaque or not exits:
            return Layer(number, operators, exits, (), opaque)
        axes = self._axes(operators, exits)
        places = {key: index for axis in axes for key, index, _ in self._places(axis, exits)}
        each = {key: count for axis in axes for key, _, count in self._places(axis, exits)}
        reduced = tuple(self._reduced_axes(operators))
        combined = tuple(self._combined_axes(reduced, exits))
        return Layer(number, operators, exits, axes, False, places, each, reduced, combined)

    def _combined_axes(self, reduced: tuple[tuple[str, Axis], ...], exits: tuple[str, ...]) -> Iterator[Axis]:
        shapes = {self.graph.tensors[name].shape for name in exits}
        for name, axis in reduced:
            written = self.graph.shape_of(self.graph.by_name[name].outputs[0])
            if axis.extent < 2 * axis.quantum or shapes != {written}:
                continue
            key = self.kinds[name], axis
            if key not in self._kept:
                self._kept[key] = tuple(self._kept_by(name, axis))
            yield from self._kept[key]

    def _kept_by(self, name: str, axis: Axis) -> Iterator[Axis]:
        """Yields the reduced axis as an axis of the combined output, if the output can be divided along it."""
        reduction = self.accesses[name].reduction(axis)
        halves = (Interval(0, axis.quantum), Interval(axis.quantum, axis.extent))
        for made in reduction.combine(halves).axes() if reduction.again else ():
            if made.reducer is None and made.index == axis.index:
                yield replace(made, name=axis.name)

    def _places(
        self, axis: Axis, exits: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, str], int | None, int]]:
        """Yields the position of an axis in each exit, and the exit's elements for a quantum of the axis, for an operator
        with several outputs."""
        if axis.places:
            for name in exits:
                output = self.graph.producers[name].outputs.index(name)
                yield (axis.name, name), axis.place(output), axis.elements(output)

    def _reduced_axes(self, operators: tuple[Operator, ...]) -> Iterator[tuple[str, Axis]]:
        """Yields the reduced axes along which operators can be parted. There are none inside a
        quantise/dequantise group: sums of parts round differently."""
        if any(op.op_type in DEQUANTIZE | QUANTIZE for op in operators):
            return
        for op in operators:
            if not self.is_pulled(op):
                yield from (
                    (op.name, axis) for axis in self.accesses[op.name].axes() if axis.reducer is not None
                )

    def _leaves(self, name: str, number: int) -> bool:
        readers = self.graph.consumers[name]
        return name in self.graph.outputs or any(self.layer_of[op.name] != number for op in readers)

    def is_pulled(self, op: Operator) -> bool:
        """Whether each reader of `op` computes it itself, on its own devices."""
        return op.name in self.pulled

    @cached_property
    def pulled(self) -> frozenset[str]:
        """Names of all operators that are pulled."""
        return frozenset(op.name for op in self.graph.operators if self._is_left(op))

    def _is_left(self, op: Operator) -> bool:
        access = self.accesses[op.name]
        if access.opaque is not None or any(name in self.graph.outputs for name in op.outputs):
            return False
        constant = not any(True for _ in self.graph.reads(op))
        return constant or op.op_type in DEQUANTIZE or access.family in PULLED_FAMILIES

    def _axes(self, operators: tuple[Operator, ...], exits: tuple[str, ...]) -> tuple[Axis, ...]:
        """The axes along which every operator of the layer can be divided, each with the coarsest quantum of
        the operators."""
        writers = {self.graph.producers[name].name: self.graph.producers[name] for name in exits}
        if len(writers) == 1:
            ((name, writer),) = writers.items()
            if len(writer.outputs) > 1:
                return tuple(axis for axis in self.accesses[name].axes() if axis.reducer is None)
        shape = self.graph.tensors[exits[0]].shape
        if any(self.graph.tensors[name].shape != shape for name in exits):
            return ()
        inside = [
            op for op in operators if not self.is_pulled(op) and self.graph.shape_of(op.outputs[0]) == shape
        ]
        found = [a for a in self.accesses[inside[0].name].axes() if a.reducer is None]
        for op in inside[1:]:
            quanta = {a.index: a.quantum for a in self.accesses[op.name].axes() if a.reducer is None}
            found = [
                Axis(a.name, a.index, a.extent, max(a.quantum, quanta[a.index]))
                for a in found
                if a.index in quanta
            ]
        return tuple(found)


def coarsen(graph: Graph, layer_of: Mapping[str, int] | None = None) -> Coarse:
    """The layers of `graph`. If `layer_of` is given they are its layers: those of a graph with the same operators and other
    shapes."""
    kinds = find_kinds(graph)
    declared = accesses_of(graph)
    accesses = remember(declared, kinds)
    return Coarse(graph, accesses, layer_of or _join(graph, accesses), declared, kinds)


def _join(graph: Graph, accesses: Mapping[str, Access]) -> Mapping[str, int]:
    """The number of the layer that each operator belongs to."""
    position = {op.name: number for number, op in enumerate(graph.operators)}
    joined: dict[str, str] = {}
    for op in graph.operators:
        before = max(_leaders(op, graph, accesses), key=lambda p: position[p.name], default=None)
        joined[op.name] = joined[before.name] if before else op.name
    for op in reversed(graph.operators):
        if op.op_type in DEQUANTIZE and accesses[op.name].opaque is None:
            readers = graph.consumers[op.outputs[0]]
            if readers and op.outputs[0] not in graph.outputs:
                joined[op.name] = joined[readers[0].name]
    numbers: dict[str, int] = {}
    for op in graph.operators:
        numbers.setdefault(joined[op.name], len(numbers))
    return {op.name: numbers[joined[op.name]] for op in graph.operators}


def layers(graph: Graph) -> Mapping[str, int]:
    """The number of the layer that each operator belongs to."""
    return coarsen(graph).layer_of


def _leaders(op: Operator, graph: Graph, accesses: Mapping[str, Access]) -> list[Operator]:
    """The operators whose layer `op` may join: they write an input of the shape of its output."""
    access = accesses[op.name]
    if access.family not in FOLLOWER_FAMILIES and op.op_type not in FOLLOWERS | QUANTIZE:
        return []
    if not _plain(op, access):
        return []
    shape = graph.shape_of(op.outputs[0])
    writers = [graph.producers[n] for n in op.inputs if n in graph.producers and graph.shape_of(n) == shape]
    return [
        w for w in writers if _plain(w, accesses[w.name]) and accesses[w.name].family not in PULLED_FAMILIES
    ]


def _plain(op: Operator, access: Access) -> bool:
    return access.opaque is None and sum(map(bool, op.outputs)) == 1 and op.op_type not in DEQUANTIZE
