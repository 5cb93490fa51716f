"""Partial sums, written out: an operator that is parted along a reduced axis becomes one operator for each part
and one that combines their addends.

All of these are ordinary operators of an ordinary graph, so that everything behind it (demand, stages, the
optimiser, segments, agents) moves and computes addends like any other tensor: combined in full on every
device it is an all-reduce, combined in pieces a reduce-scatter, and what is read of it decides. Rules only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgepart.planner.access.bound import numpy_dtype
from edgepart.planner.access.language import Access, Axis, Outputs, Reduction
from edgepart.planner.errors import InternalError
from edgepart.planner.graph import Graph, Operator, Tensor
from edgepart.planner.layout import Layout, Parted, Problem, Strategy
from edgepart.planner.region import Interval, Region

Combined = Mapping[str, Region]
"""By device, the region of an operator's output 0 that it makes out of addends."""


def reduced_axis(op: Operator, access: Access, name: str) -> Axis:
    """InternalError where `op` has no reduced axis of that name."""
    found = next((axis for axis in access.axes() if axis.name == name and axis.reducer is not None), None)
    if found is None:
        raise InternalError(f"{op.op_type} {op.name!r} has no reduced axis {name!r} to part")
    return found


def addends_wanted(reduction: Reduction, parts: Sequence[Interval], combined: Combined) -> list[Outputs]:
    """Per part, the regions of its addends that some device reads to make what it combines."""
    combine, count = reduction.combine(tuple(parts)), len(reduction.addends)
    found: list[dict[int, Region]] = [{} for _ in parts]
    for region in combined.values():
        needs = combine.needs({0: region})
        for n, wanted in enumerate(found):
            for k, need in enumerate(needs[n * count : (n + 1) * count]):
                if need is not None:
                    wanted[k] = wanted[k].union_spans(need) if k in wanted else need
    return list(found)


def read_again(reduction: Reduction, count: int, region: Region) -> Iterator[tuple[int, Region]]:
    """Inputs of the operator, and their regions, that combining `region` from `count` parts reads besides the
    addends."""
    parts = tuple(Interval(n, n + 1) for n in range(count))  # Only how many there are matters here.
    needs = reduction.combine(parts).needs({0: region})
    for index, need in zip(reduction.again, needs[count * len(reduction.addends) :], strict=True):
        if need is not None:
            yield index, need


def write_out(
    problem: Problem, strategy: Strategy, accesses: Mapping[str, Access]
) -> tuple[Problem, Strategy, Mapping[str, Access]]:
    """The same problem, strategy and declarations without any `Strategy.parted`.

    InternalError where the parts do not make up a reduced axis of the operator."""
    if not strategy.parted:
        return problem, strategy, accesses
    writer = _Writer(problem.graph, strategy, dict(accesses.items()))
    for op in problem.graph.operators:
        parted = strategy.parted.get(op.name)
        combined = {d: r for d, r in _regions(strategy, op).items() if not r.is_empty} if parted else {}
        if parted is None or not combined:
            writer.operators.append(op)
        else:
            writer.part(op, parted, combined)
    graph = replace(
        problem.graph,
        tensors={**problem.graph.tensors, **writer.tensors},
        operators=tuple(writer.operators),
    )
    layouts = {**strategy.layouts, **writer.layouts}
    return replace(problem, graph=graph), replace(strategy, layouts=layouts, parted={}), writer.accesses


def _regions(strategy: Strategy, op: Operator) -> Combined:
    layout = strategy.layouts.get(op.outputs[0])
    return layout.regions if layout else {}


@dataclass
class _Writer:
    """The graph, layouts and declarations as they grow."""

    graph: Graph
    strategy: Strategy
    accesses: dict[str, Access]
    operators: list[Operator] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)

    def part(self, op: Operator, parted: Parted, combined: Combined) -> None:
        access = self.accesses.pop(op.name)
        axis = reduced_axis(op, access, parted.axis)
        parts = [part for _, part in parted.parts]
        if not _make_up(parts, axis):
            raise InternalError(f"{op.op_type} {op.name!r}: {parts} are not the parts of {axis}")
        reduction = access.reduction(axis)
        wanted = addends_wanted(reduction, parts, combined)
        made: list[str] = []
        for (device, part), regions in zip(parted.parts, wanted, strict=True):
            where = f"#{axis.name}[{part.start}:{part.stop}]"
            names = tuple(self._addend(op, k, where, reduction) for k in range(len(reduction.addends)))
            self.layouts.update((names[k], Layout({device: region})) for k, region in regions.items())
            self._add(replace(op, name=op.name + where, outputs=names), reduction.part(part))
            made += names
        again = [op.inputs[index] for index in reduction.again]
        name = f"{op.name}#{axis.name}"
        combining = replace(op, name=name, inputs=(*made, *again), captured=())
        self._add(combining, reduction.combine(tuple(parts)))

    def _addend(self, op: Operator, number: int, where: str, reduction: Reduction) -> str:
        addend = reduction.addends[number]
        name = f"{op.outputs[0]}{where}" + (f".{number}" if number else "")
        while name in self.graph.tensors or name in self.graph.constants:
            name += "'"
        item_bytes = numpy_dtype(addend.dtype).itemsize
        self.tensors[name] = Tensor(name, addend.shape, addend.dtype, item_bytes)
        return name

    def _add(self, op: Operator, access: Access) -> None:
        self.operators.append(op)
        self.accesses[op.name] = access


def _make_up(parts: Sequence[Interval], axis: Axis) -> bool:
    ends = [0, *(part.stop for part in parts)]
    return ends[-1] == axis.extent and all(part.start == end for part, end in zip(parts, ends, strict=False))
