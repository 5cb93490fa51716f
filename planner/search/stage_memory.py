"""Stage memory: what consecutive layers take if they are whole on one device. Rules only.

A stage's peak has two parts. Its session keeps weights and operators. In addition there is the most of what making the
session takes, and of what one request takes: the values that are alive at once, and the states of sequences. This is how
a plan counts (planner/lowering/assemble.py), for all stages at once and without lowering any. It is an estimate, as the
plan may compute a stage in several sessions, and knows which values a device holds; `StageMemory` learns from plans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from edgepart.planner.cost.memory import session_bytes, whole_memory
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.model.graph import Operator
from edgepart.planner.search.memo import Memo

Table = np.ndarray[Any, np.dtype[np.float64]]
"""A number for each stage, [from place, to place]; places lie before, between and after the parts."""

Row = np.ndarray[Any, np.dtype[np.float64]]


def owned_operators(memo: Memo) -> Mapping[int, tuple[Operator, ...]]:
    """The operators of each layer that has exits, by the layer's number, with those that its device computes for
    itself (views and copies), in the model's order. What several layers read belongs to the first of them."""
    coarse, graph = memo.coarse, memo.graph
    owner: dict[str, int] = {}
    found: dict[int, list[Operator]] = defaultdict(list)
    for op in reversed(graph.operators):
        number = coarse.layer_of[op.name]
        if not coarse.layers[number].exits:
            readers = (owner[reader.name] for name in op.outputs if name for reader in graph.consumers[name])
            number = next(readers, number)
        owner[op.name] = number
        found[number].append(op)
    return {number: tuple(reversed(operators)) for number, operators in found.items()}


class StageMemory:
    """The predicted peak of each stage of a row of parts, on each of some devices."""

    def __init__(self, memo: Memo, parts: Sequence[Sequence[Layer]], devices: Sequence[str]) -> None:
        self._kinds: list[Hashable] = []
        """For each device, what its peak depends on besides the stage."""
        self._tables: dict[Hashable, Table] = {}
        base = _estimate(memo, parts)
        for name in devices:
            device = memo.cluster.device(name)
            kind = device.threads, str(device.engines)
            self._kinds.append(kind)
            self._tables.setdefault(kind, base + session_bytes(device.threads))

    def nbytes(self, device: int) -> Table:
        """The bytes of each stage on the device of this index."""
        return self._tables[self._kinds[device]]

    def learn(self, device: int, begin: int, end: int, peak: float) -> bool:
        """Take over the peak of a stage that a plan has shown. Stages around it take no less, and those inside it no
        more. Return whether that is news."""
        table = self.nbytes(device)
        if table[begin, end] == peak:
            return False
        around, inside = (slice(begin + 1), slice(end, None)), (slice(begin, None), slice(end + 1))
        table[around] = np.maximum(table[around], peak)
        table[inside] = np.minimum(table[inside], peak)
        table[begin, end] = peak
        return True


def _estimate(memo: Memo, parts: Sequence[Sequence[Layer]]) -> Table:
    """The bytes of each stage, without those of an empty session. Stages that go backwards have no meaning."""
    owned = owned_operators(memo)
    inside = [[op for layer in part for op in owned.get(layer.number, ())] for part in parts]
    memory = [whole_memory(memo.graph, operators) for operators in inside]
    kept = _sums([one.kept_bytes for one in memory])
    making = np.maximum(
        _sums([one.reordered_bytes for one in memory]), _most([one.largest_bytes for one in memory])
    )
    request = _states(memo, inside) + _values(memo, inside)
    result: Table = kept + np.maximum(making, request)
    return result


def _states(memo: Memo, inside: Sequence[Sequence[Operator]]) -> Table:
    """The bytes that the device of each stage keeps of all sequences."""
    graph, each = memo.graph, [0.0] * len(inside)
    part_of = {name: n for n, operators in enumerate(inside) for op in operators for name in op.outputs}
    for state in graph.states:
        if state.output in part_of:
            each[part_of[state.output]] += memo.problem.sequences * graph.tensors[state.input].nbytes
    return _sums(each)


def _values(memo: Memo, inside: Sequence[Sequence[Operator]]) -> Table:
    """The most bytes of values while a request runs through each stage: those that were received for it, and those that
    are alive at the same time in its session. A shape that is known only at run time counts 0."""
    graph, position, places = memo.graph, memo.position, len(inside) + 1
    part_of = {op.name: n for n, operators in enumerate(inside) for op in operators}
    at_once, crossing = np.zeros(len(graph.operators) + 1), np.zeros(places)
    read, received = np.zeros((places, places)), np.zeros((places, places))
    kept = {state.input for state in graph.states}
    for name, tensor in graph.tensors.items():
        readers = sorted({part_of[op.name] for op in graph.consumers[name] if op.name in part_of})
        maker = graph.producers.get(name)
        if tensor.shape is None or (maker and maker.name not in part_of) or not (maker or readers):
            continue
        born = position[maker.name] if maker else 0
        at_once[born] += tensor.nbytes
        at_once[max([born, *(position[op.name] for op in graph.consumers[name])]) + 1] -= tensor.nbytes
        source = part_of[maker.name] if maker else -1
        for begin in range(source + 1, readers[-1] + 1 if readers else 0):
            crossing[begin] += tensor.nbytes
            first = next(reader for reader in readers if reader >= begin)
            read[begin, first + 1 :] += tensor.nbytes
            if name not in kept:
                received[begin, first + 1 :] += tensor.nbytes
    at_once = np.cumsum(at_once)
    alive = _most([max((float(at_once[position[op.name]]) for op in ops), default=0.0) for ops in inside])
    result: Table = received + alive - (crossing[:, None] - read)  # What passes by is alive elsewhere.
    return result


def _sums(each: Sequence[float]) -> Table:
    """The sum over the parts of each stage."""
    ends = np.cumsum([0.0, *each])
    result: Table = ends[None, :] - ends[:, None]
    return result


def _most(each: Sequence[float]) -> Table:
    """The most among the parts of each stage."""
    found = np.zeros((len(each) + 1, len(each) + 1))
    for begin in range(len(each)):
        found[begin, begin + 1 :] = np.maximum.accumulate(each[begin:])
    return found
