"""Turns a model on a cluster into a workload to place, and a placement back into choices. Rules only.

A task is a layer (planner/layers/coarsen.py), which no plan cuts, or all layers that have operators of one
fused group. Two more tasks stay at the gateway: the model's inputs and its outputs. Pulled operators (views
and copies between layers) are charged to the first task that reads them. A message costs time at both its
ends, starts a segment where it arrives, and is copied out of one segment and into another.

The memory of a task is what a session keeps of its weights, and what making the session takes for them in addition. The
second part is an upper bound, because a device makes one session after another, and is reached if all of its tasks are in
one session (`charge` takes less of it). A machine has the memory of its device without an empty session.

A medium of the cluster carries what crosses it at its own rate at most. Where one transfer nearly fills it, transfers take
turns there; where it has room for several, it is left out. The workload also leaves out the memory for values that are
alive at once, and work that several devices do. A placement that was found on it has to be simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import inf

import networkx as nx

from edgepart.planner.cost.memory import WholeMemory, session_bytes, whole_memory
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layers.runtime_fusion import find_fused_groups
from edgepart.planner.layout.choices import Choice, Whole
from edgepart.planner.model.graph import Operator
from edgepart.planner.placing.problem.workload import (
    Machine,
    Placement,
    SharedMedium,
    Task,
    TaskTensor,
    Workload,
)
from edgepart.planner.search.memo import Memo

ENTRY, END = "inputs", "outputs"
"""Names of the gateway's tasks; no layer's name is one of them."""

FULL = 0.7
"""The part of a medium that one transfer fills from which on transfers take turns there. Two that each fill this part of it
take 1.4 times as long together as either alone: that is as far from twice as long, in turn, as from no longer."""


@dataclass(frozen=True)
class ModelWorkload:
    """A workload that stands for a model on a cluster."""

    workload: Workload
    layers: tuple[tuple[Layer, ...], ...]
    """The layers of each task; () for the gateway's tasks."""
    memory: tuple[WholeMemory, ...]
    """What each task takes in a session."""

    def choices(self, placement: Placement) -> dict[int, Choice]:
        """The choices that put each layer whole on the device of its task."""
        names = [machine.name for machine in self.workload.machines]
        return {
            layer.number: Whole((names[machine],))
            for layers, machine in zip(self.layers, placement, strict=True)
            for layer in layers
        }

    def order(self, starts: Sequence[float]) -> dict[int, float]:
        """The order of layers, by the starts of their tasks; tasks that start together are in the workload's order."""
        place = {task: n for n, task in enumerate(self.workload.order)}
        tasks = sorted(range(len(starts)), key=lambda task: (starts[task], place[task]))
        return {layer.number: float(n) for n, task in enumerate(tasks) for layer in self.layers[task]}

    def charge(self, making: float, spare_bytes: float) -> Workload:
        """The workload in which tasks take the part `making` of what making a session takes in addition for them, from 0
        to 1, and every machine keeps `spare_bytes` free."""
        tasks = (
            replace(task, memory_bytes=memory.kept_bytes + making * memory.reordered_bytes)
            for task, memory in zip(self.workload.tasks, self.memory, strict=True)
        )
        machines = (
            replace(machine, memory_bytes=max(0.0, machine.memory_bytes - spare_bytes))
            for machine in self.workload.machines
        )
        return replace(self.workload, tasks=tuple(tasks), machines=tuple(machines)).like(self.workload)


def build_workload(memo: Memo, groups: Iterable[Sequence[str]] = ()) -> ModelWorkload:
    """The workload of the study's model on its cluster. `groups` are names of operators that stay together
    unless that makes a circle."""
    readers = _find_readers(memo)
    parts = _parts(memo, readers, groups)
    builder = _WorkloadBuilder(memo, readers, parts)
    return ModelWorkload(builder.workload(), ((), *parts, ()), builder.memory)


def build_fused_workload(memo: Memo) -> ModelWorkload:
    """The same workload; operators that the runtime fuses stay together if the problem says so."""
    groups = find_fused_groups(memo.graph) if memo.problem.fusion else ()
    return build_workload(memo, [[op.name for op in group] for group in groups])


def _find_readers(memo: Memo) -> Mapping[str, frozenset[int]]:
    """The layers that read each tensor. A pulled operator reads on behalf of the layers that read its outputs."""
    graph, coarse = memo.graph, memo.coarse
    found: dict[str, frozenset[int]] = dict.fromkeys(graph.tensors, frozenset())
    for op in reversed(graph.operators):
        readers = frozenset((coarse.layer_of[op.name],))
        if coarse.is_pulled(op):
            readers = frozenset[int]().union(*(found[name] for name in op.outputs if name))
        for name in graph.reads(op):
            found[name] |= readers
    return found


def _parts(
    memo: Memo, readers: Mapping[str, frozenset[int]], groups: Iterable[Sequence[str]]
) -> tuple[tuple[Layer, ...], ...]:
    """The layers that are placed together, in the model's order: those of a group, and those that wait for
    each other. If groups would wait for each other, the groups that reach furthest are given up."""
    layers = {layer.number: layer for layer in memo.layers}
    waits = nx.DiGraph()
    waits.add_nodes_from(layers)
    for layer in layers.values():
        waits.add_edges_from((layer.number, r) for n in layer.exits for r in readers[n] if r in layers)
    wanted = [
        numbers
        for group in groups
        if len(numbers := {memo.coarse.layer_of[name] for name in group} & layers.keys()) > 1
    ]
    circles_of_layers = list(map(tuple, nx.strongly_connected_components(waits)))
    while True:
        joined = nx.Graph()
        joined.add_nodes_from(layers)
        for together in (*map(tuple, wanted), *circles_of_layers):
            joined.add_edges_from((together[0], other) for other in together[1:])
        found = list(nx.connected_components(joined))
        of = {number: n for n, part in enumerate(found) for number in part}
        between = nx.DiGraph((of[a], of[b]) for a, b in waits.edges if of[a] != of[b])
        circles = [circle for circle in nx.strongly_connected_components(between) if len(circle) > 1]
        if not circles:
            break
        for circle in circles:
            inside = [numbers for numbers in wanted if of[next(iter(numbers))] in circle]
            wanted.remove(max(inside, key=lambda numbers: max(numbers) - min(numbers)))
    ordered = sorted(sorted(part) for part in found)
    return tuple(tuple(layers[number] for number in part) for part in ordered)


class _WorkloadBuilder:
    """Builds the workload of one model. Its first task stands for the model's inputs, its last one for the outputs."""

    def __init__(
        self, memo: Memo, readers: Mapping[str, frozenset[int]], parts: Sequence[tuple[Layer, ...]]
    ) -> None:
        self.memo, self.readers, self.parts = memo, readers, parts
        self.names = [device.name for device in memo.cluster.devices]
        self.task_of = {layer.number: n for n, layers in enumerate(parts, 1) for layer in layers}

    def workload(self) -> Workload:
        cluster, cost = self.memo.cluster, self.memo.cost
        links = [[cluster.link(a, b) for b in self.names] for a in self.names]
        latency_s = tuple(
            tuple(
                0.0 if a == b else link.latency_s + 2 * link.message_s + cost.segment_s(b)
                for b, link in zip(self.names, row, strict=True)
            )
            for a, row in zip(self.names, links, strict=True)
        )
        copied = self._copy_s()
        rates = tuple(
            tuple(
                inf if a == b else 1 / (1 / self._carried(a, b) + copied[a] + copied[b]) for b in self.names
            )
            for a in self.names
        )
        machines = tuple(
            Machine(
                device.name,
                device.kind,
                max(0.0, self.memo.limit_bytes(device.name) - session_bytes(device.threads)),
            )
            for device in cluster.devices
        )
        tasks = (self._at_gateway(ENTRY), *self._tasks(), self._at_gateway(END))
        return Workload(
            self.memo.graph.name,
            machines,
            tasks,
            tuple(self._tensors()),
            rates,
            latency_s,
            media=tuple(self._media()),
        )

    def _carried(self, a: str, b: str) -> float:
        """The bytes/s of a transfer from one device to another that has the media on its way to itself."""
        cluster = self.memo.cluster
        crossed = ((m.bytes_per_s, cluster.crossings(m, a, b)) for m in cluster.media)
        return min(cluster.link(a, b).bytes_per_s, *(rate / n for rate, n in crossed if n), inf)

    def _media(self) -> Iterator[SharedMedium]:
        """The media that transfers cross in turn, between those devices where one transfer nearly fills them."""
        cluster = self.memo.cluster
        for medium in cluster.media:
            pairs = frozenset(
                (i, j)
                for (i, a), (j, b) in permutations(enumerate(self.names), 2)
                if self._carried(a, b) * cluster.crossings(medium, a, b) >= FULL * medium.bytes_per_s
            )
            if pairs:
                yield SharedMedium(medium.name, pairs)

    def _copy_s(self) -> dict[str, float]:
        """Seconds a byte, on each device, to copy a tensor out of a segment that sends it or into one that
        receives it. The tensor has the median size of those that layers hand on."""
        graph = self.memo.graph
        sizes = sorted(
            graph.tensors[name].nbytes for layers in self.parts for la in layers for name in la.exits
        )
        typical = max(1, sizes[len(sizes) // 2]) if sizes else 1
        return {device: self.memo.cost.copy_s(device, typical) / typical for device in self.names}

    def _at_gateway(self, name: str) -> Task:
        gateway = self.memo.problem.gateway
        return Task(name, "", tuple(0.0 if device == gateway else inf for device in self.names))

    def _tasks(self) -> Iterator[Task]:
        seconds = [self.memo.seconds_on(device) for device in self.names]
        for number, (layers, inside) in enumerate(zip(self.parts, self.inside, strict=True), 1):
            compute_s = tuple(sum(known[op.name] for op in inside) for known in seconds)
            anchor, taken = layers[0].anchor, self.memory[number].most_bytes
            yield Task(f"{number}: {anchor.name}", anchor.op_type, compute_s, taken)

    @cached_property
    def inside(self) -> tuple[tuple[Operator, ...], ...]:
        """The operators of each part, with those that were pulled to it."""
        graph, coarse = self.memo.graph, self.memo.coarse
        operators = defaultdict(list)
        for op in graph.operators:
            readers = {coarse.layer_of[op.name]}
            if coarse.is_pulled(op):
                readers = {number for name in op.outputs if name for number in self.readers[name]}
            tasks = [self.task_of[number] for number in readers if number in self.task_of]
            if tasks:
                operators[min(tasks)].append(op)
        return tuple(tuple(operators[number]) for number in range(1, len(self.parts) + 1))

    @cached_property
    def memory(self) -> tuple[WholeMemory, ...]:
        """The memory of each task, with the gateway's."""
        none = WholeMemory(0.0, 0.0, 0.0)
        return (none, *(whole_memory(self.memo.graph, operators) for operators in self.inside), none)

    def _tensors(self) -> Iterator[TaskTensor]:
        graph, end = self.memo.graph, len(self.parts) + 1
        for name in graph.request_inputs:
            yield from self._tensor(name, 0, graph.tensors[name].nbytes)
        for number, layers in enumerate(self.parts, 1):
            for name in (name for layer in layers for name in layer.exits):
                is_output = name in graph.answer_outputs
                item_bytes = graph.tensors[name].item_bytes if is_output else self.memo.travel_bytes(name)
                nbytes = graph.tensors[name].region.size * item_bytes
                yield from self._tensor(name, number, nbytes, (end,) if is_output else ())

    def _tensor(
        self, name: str, source: int, nbytes: float, also: tuple[int, ...] = ()
    ) -> Iterator[TaskTensor]:
        inside = {self.task_of[number] for number in self.readers[name] if number in self.task_of}
        if readers := tuple(sorted({*inside, *also} - {source})):
            yield TaskTensor(source, readers, float(nbytes))
