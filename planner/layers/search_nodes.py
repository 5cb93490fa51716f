"""The nodes of a layer-wise search: the units that the search makes a choice for.

A node is a layer together with the pulled operators before it that its devices compute again, back to the
tensors that other layers hold. Takes the layers of a graph; gives the nodes, with equal kinds if they are the
same except for names, so that the cost levels (planner/cost, planner/layerwise) measure each kind once. Rules
only.

A pulled tensor that several layers read (the Concat at the end of an inception module) is a **junction**: a
node of the search of its own, like a layer in OptCNN. Its choice stands for the layout in which its readers
find the tensor. No tensor is laid out by this choice: each reader still pulls what it needs. But data that
the readers agree on moves, and costs, only once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from edgepart.planner.layers.coarsen import PULLED_FAMILIES, Coarse, Layer
from edgepart.planner.model.graph import Operator


@dataclass(frozen=True)
class SearchNode:
    """One node of the search."""

    layer: Layer
    """The layer of the node; its number is below zero for a junction."""
    operators: tuple[Operator, ...]
    """The layer's own operators and the pulled ones that it computes again, each before the operators that it
    reads from."""
    sources: tuple[str, ...]
    """The tensors that the node reads from outside: exits of other nodes, and inputs of the model."""
    kind: int
    """A number that is equal for nodes of one model that are the same except for names, because blocks of a
    network repeat."""

    @property
    def exits(self) -> tuple[str, ...]:
        """The tensors that other nodes read from this node."""
        return self.layer.exits

    @property
    def is_junction(self) -> bool:
        return self.layer.number < 0


def find_search_nodes(coarse: Coarse, free: frozenset[str] = frozenset()) -> tuple[SearchNode, ...]:
    """A node for every layer that has exits, and for every junction, in the order of their last operators.
    `free` are the names of operators that cost nothing in their surroundings, which makes otherwise equal
    nodes different."""
    return tuple(_SearchNodeBuilder(coarse, free).run())


@dataclass
class _SearchNodeBuilder:
    coarse: Coarse
    free: frozenset[str]
    pulled: frozenset[str] = field(init=False)
    joints: dict[str, int] = field(default_factory=dict)
    """The number of each pulled operator that is a junction, by its name."""
    kinds: dict[Hashable, int] = field(default_factory=dict)

    def run(self) -> Iterator[SearchNode]:
        graph, coarse = self.coarse.graph, self.coarse
        self.position = {op.name: n for n, op in enumerate(graph.operators)}
        self.pulled = coarse.pulled
        self._find_joints()
        found = [
            (layer, [op for op in layer.operators if op.name not in self.pulled]) for layer in coarse.layers
        ]
        starts = [(layer, own) for layer, own in found if layer.exits]
        starts += [
            (self._junction(name, number), [graph.by_name[name]]) for name, number in self.joints.items()
        ]
        for layer, own in sorted(starts, key=lambda one: self.position[one[1][-1].name]):
            yield self._make_node(layer, own)

    def _find_joints(self) -> None:
        """Finds the junctions: pulled operators with more than one reader, from the last one back."""
        readers: dict[str, set[int]] = {}
        graph, layer_of = self.coarse.graph, self.coarse.layer_of
        for op in reversed(graph.operators):
            if op.name not in self.pulled:
                continue
            found: set[int] = set()
            for reader in (r for name in op.outputs if name for r in graph.consumers[name]):
                if reader.name in self.joints:
                    found.add(self.joints[reader.name])
                elif reader.name in self.pulled:
                    found |= readers[reader.name]
                else:
                    found.add(layer_of[reader.name])
            readers[op.name] = found
            if len(found) > 1 and self._can_join(op):
                self.joints[op.name] = -1 - len(self.joints)

    def _can_join(self, op: Operator) -> bool:
        access = self.coarse.accesses[op.name]
        reads = any(True for _ in self.coarse.graph.reads(op))
        return reads and access.family in PULLED_FAMILIES and len(op.outputs) == 1 and bool(access.axes())

    def _junction(self, name: str, number: int) -> Layer:
        op = self.coarse.graph.by_name[name]
        axes = tuple(axis for axis in self.coarse.accesses[name].axes() if axis.reducer is None)
        return Layer(number, (op,), op.outputs, axes, opaque=False)

    def _make_node(self, layer: Layer, own: list[Operator]) -> SearchNode:
        graph = self.coarse.graph
        members = {op.name: op for op in own}
        sources: dict[str, None] = {}
        waiting = list(own)
        while waiting:
            for name in graph.reads(waiting.pop()):
                writer = graph.producers.get(name)
                if writer is None or (writer.name not in members and not self._again(writer)):
                    sources[name] = None
                elif writer.name not in members:
                    members[writer.name] = writer
                    waiting.append(writer)
        operators = sorted(members.values(), key=lambda op: -self.position[op.name])
        order = {name: n for n, name in enumerate(sources)}
        described = (layer.number < 0, tuple(self._kinds(layer, operators, order)))
        kind = self.kinds.setdefault(described, len(self.kinds))
        return SearchNode(layer, tuple(operators), tuple(sources), kind)

    def _again(self, op: Operator) -> bool:
        """Whether each reader of `op` computes it again."""
        return op.name in self.pulled and op.name not in self.joints

    def _kinds(
        self, layer: Layer, operators: list[Operator], sources: Mapping[str, int]
    ) -> Iterator[Hashable]:
        graph = self.coarse.graph
        inside = {name: (n, k) for n, op in enumerate(operators) for k, name in enumerate(op.outputs) if name}
        for op in operators:
            reads = tuple(inside.get(name) or sources.get(name) for name in op.inputs)
            leaves = tuple((name in layer.exits, name in graph.outputs) for name in op.outputs)
            yield self.coarse.kinds[op.name], reads, leaves, op.name in self.free
