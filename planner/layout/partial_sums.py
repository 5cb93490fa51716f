"""Partial sums as ordinary operators: an operator that is parted along a reduced axis becomes one operator
for each part, and one that combines their addends.

All of these are ordinary operators of an ordinary graph, so that everything after this step (demand, stages,
the optimiser, segments, agents) moves and computes addends like any other tensor. Combining in full on every
device is an all-reduce, combining in pieces a reduce-scatter; the readers of the output decide which. Rules
only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgepart.planner.access.declare.bound import numpy_dtype
from edgepart.planner.access.declare.protocol import Access, Addend, Axis, Outputs, Reduction
from edgepart.planner.errors import InternalError
from edgepart.planner.layout.strategy import Layout, Parted, Problem, Strategy
from edgepart.planner.model.graph import Graph, Operator, Tensor
from edgepart.planner.region import Interval, Region

Combined = Mapping[str, Region]
"""The region of an operator's output 0 that each device makes out of addends."""


def find_reduced_axis(op: Operator, access: Access, name: str) -> Axis:
    """The reduced axis `name` of `op`. Raises InternalError if there is none."""
    found = next((axis for axis in access.axes() if axis.name == name and axis.reducer is not None), None)
    if found is None:
        raise InternalError(f"{op.op_type} {op.name!r} has no reduced axis {name!r} to part")
    return found


def find_wanted_addends(reduction: Reduction, parts: Sequence[Interval], combined: Combined) -> list[Outputs]:
    """The regions of each part's addends that some device reads to make the region that it combines."""
    combine, count = reduction.combine(tuple(parts)), len(reduction.addends)
    found: list[dict[int, Region]] = [{} for _ in parts]
    for region in combined.values():
        needs = combine.needs({0: region})
        for n, wanted in enumerate(found):
            for k, need in enumerate(needs[n * count : (n + 1) * count]):
                if need is not None:
                    wanted[k] = wanted[k].union_spans(need) if k in wanted else need
    return list(found)


def find_reread_inputs(reduction: Reduction, count: int, region: Region) -> Iterator[tuple[int, Region]]:
    """Yields the index and region of each input of the operator that combining `region` from `count` parts
    reads besides the addends."""
    parts = tuple(Interval(n, n + 1) for n in range(count))  # Only the number of parts matters here.
    needs = reduction.combine(parts).needs({0: region})
    for index, need in zip(reduction.again, needs[count * len(reduction.addends) :], strict=True):
        if need is not None:
            yield index, need


@dataclass(frozen=True)
class _Parts:
    """The operators and tensors that replace one parted operator."""

    operators: tuple[Operator, ...]
    accesses: tuple[Access, ...]
    """The declaration of each of the operators."""
    tensors: Mapping[str, Tensor]
    """The addends, by name."""
    layouts: Mapping[str, Layout]
    """The region of each addend that a device makes, by name of the addend."""


class PartialStrategies:
    """Writes out the partial sums of strategies of one problem. Operators that two strategies part in the
    same way become identical operators."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Parted, int], tuple[_Parts | None, Layout | None]] = {}

    def write_out(
        self, problem: Problem, strategy: Strategy, accesses: Mapping[str, Access]
    ) -> tuple[Problem, Strategy, Mapping[str, Access]]:
        """The problem, strategy and declarations with every parted operator written out, and no
        `Strategy.parted`.

        Raises InternalError if the parts do not make up a reduced axis of the operator."""
        if not strategy.parted:
            return problem, strategy, accesses
        operators: list[Operator] = []
        tensors, layouts = dict(problem.graph.tensors), dict(strategy.layouts)
        known = dict(accesses.items())
        for op in problem.graph.operators:
            parted = strategy.parted.get(op.name)
            parts = self._parts(problem.graph, strategy, known[op.name], op, parted) if parted else None
            if parts is None:
                operators.append(op)
                continue
            del known[op.name]
            operators += parts.operators
            known.update(
                (op.name, access) for op, access in zip(parts.operators, parts.accesses, strict=True)
            )
            tensors.update(parts.tensors)
            layouts.update(parts.layouts)
        graph = replace(problem.graph, tensors=tensors, operators=tuple(operators))
        return replace(problem, graph=graph), replace(strategy, layouts=layouts, parted={}), known

    def _parts(
        self, graph: Graph, strategy: Strategy, access: Access, op: Operator, parted: Parted
    ) -> _Parts | None:
        """The parts of one operator; None if no device makes any of the operator's output."""
        layout = strategy.layouts.get(op.outputs[0])
        key = (op.name, parted, id(layout))  # The layout is kept too, so that its id is not reused.
        if key not in self._found:
            regions = layout.regions if layout else {}
            combined = {device: region for device, region in regions.items() if not region.is_empty}
            made = _write_out(graph, op, access, parted, combined) if combined else None
            self._found[key] = made, layout
        return self._found[key][0]


def _write_out(graph: Graph, op: Operator, access: Access, parted: Parted, combined: Combined) -> _Parts:
    axis = find_reduced_axis(op, access, parted.axis)
    intervals = [interval for _, interval in parted.parts]
    if not _make_up(intervals, axis):
        raise InternalError(f"{op.op_type} {op.name!r}: {intervals} are not the parts of {axis}")
    reduction = access.reduction(axis)
    operators: list[Operator] = []
    tensors: dict[str, Tensor] = {}
    layouts: dict[str, Layout] = {}
    made: list[str] = []
    wanted = find_wanted_addends(reduction, intervals, combined)
    for (device, interval), regions in zip(parted.parts, wanted, strict=True):
        where = f"#{axis.name}[{interval.start}:{interval.stop}]"
        addends = [_addend(graph, op, k, where, addend) for k, addend in enumerate(reduction.addends)]
        tensors.update((tensor.name, tensor) for tensor in addends)
        names = tuple(tensor.name for tensor in addends)
        layouts.update((names[k], Layout({device: region})) for k, region in regions.items())
        operators.append(replace(op, name=op.name + where, outputs=names))
        made += names
    again = [op.inputs[index] for index in reduction.again]
    operators.append(replace(op, name=f"{op.name}#{axis.name}", inputs=(*made, *again), captured=()))
    accesses = (*map(reduction.part, intervals), reduction.combine(tuple(intervals)))
    return _Parts(tuple(operators), accesses, tensors, layouts)


def _addend(graph: Graph, op: Operator, number: int, where: str, addend: Addend) -> Tensor:
    name = f"{op.outputs[0]}{where}" + (f".{number}" if number else "")
    while name in graph.tensors or name in graph.constants:
        name += "'"
    return Tensor(name, addend.shape, addend.dtype, numpy_dtype(addend.dtype).itemsize)


def _make_up(parts: Sequence[Interval], axis: Axis) -> bool:
    ends = [0, *(part.stop for part in parts)]
    return ends[-1] == axis.extent and all(part.start == end for part, end in zip(parts, ends, strict=False))
