"""Cuts: an order of tasks, the places where it may be cut into stages, and the costs of all stages. Rules only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np

from edgepart.planner.placing.chain_partition import Loads
from edgepart.planner.placing.engine.dispatch import mean_costs
from edgepart.planner.placing.problem.workload import Workload

MOST_BLOCKS = 200
"""The most blocks between cuts. A longer order is divided into this many equal parts of its work, and cut
once in each, where transfers across the cut take the least time."""

Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Blocks:
    """Blocks of tasks: a stage is a run of them."""

    tasks: tuple[tuple[int, ...], ...]
    """The tasks of each block, in order. A task reads from its own block and earlier ones; no group is in two blocks."""
    units: tuple[tuple[int, ...], ...]
    """Sets of tasks that no cut may separate, in order."""
    ends: tuple[int, ...]
    """The number of units up to the end of each block."""


def blocks(workload: Workload) -> Blocks:
    """Divide the tasks, in the workload's order, into as many blocks as possible, but not more than `MOST_BLOCKS`."""
    units = _units(workload)
    return _blocks(units, _ends(workload, units))


def cut_nearer(found: Blocks, cuts: Sequence[int]) -> Blocks:
    """Cut the order again: at as many places as possible near the good `cuts` (each the number of blocks
    before it), and nowhere else. All good cuts are kept."""
    ends = {found.ends[cut - 1] for cut in cuts} | {len(found.units)}
    for cut in cuts:
        first = found.ends[cut - 2] if cut > 1 else 0
        last = found.ends[min(cut, len(found.ends) - 1)]
        step = max(1, -(-(last - first) * len(cuts) // MOST_BLOCKS))
        ends |= set(range(max(first, 1), last + 1, step))
    return _blocks(found.units, sorted(ends))


def _blocks(units: Sequence[tuple[int, ...]], ends: Sequence[int]) -> Blocks:
    return Blocks(
        tuple(
            tuple(task for unit in units[begin:end] for task in unit) for begin, end in pairwise([0, *ends])
        ),
        tuple(units),
        tuple(ends),
    )


def _units(workload: Workload) -> list[tuple[int, ...]]:
    """Return the sets of tasks that stay together in every contiguous division, in order: groups, and groups
    that wait for each other."""
    if len(workload.groups) == len(workload.tasks):
        return [(task,) for task in workload.order]
    position = {task: number for number, task in enumerate(workload.order)}
    group = workload.graph.group
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(workload.groups)))
    graph.add_edges_from(
        (group[task], group[reader]) for task, readers in enumerate(workload.after) for reader in readers
    )
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    whole = nx.condensation(graph)
    tasks = {
        node: sorted(
            (task for member in whole.nodes[node]["members"] for task in workload.groups[member]),
            key=position.__getitem__,
        )
        for node in whole
    }
    order = nx.lexicographical_topological_sort(whole, key=lambda node: position[tasks[node][0]])
    return [tuple(tasks[node]) for node in order]


def _ends(workload: Workload, units: Sequence[Sequence[int]]) -> list[int]:
    """Return the number of units before each cut. The end counts as a cut."""
    count = len(units)
    if count <= MOST_BLOCKS:
        return list(range(1, count + 1))
    compute_s, _ = mean_costs(workload)
    kept = sum(task.memory_bytes for task in workload.tasks) or 1.0
    took_s = sum(compute_s) or 1.0
    work = np.cumsum(
        [
            sum(
                compute_s[t] / took_s + workload.tasks[t].memory_bytes / kept + 1 / len(compute_s)
                for t in unit
            )
            for unit in units
        ]
    )
    part = np.minimum((work / work[-1] * MOST_BLOCKS).astype(int), MOST_BLOCKS - 1)
    crossing = _crossing_s(workload, units)
    best: dict[int, int] = {}
    for number in range(count - 1):
        here = int(part[number])
        if here not in best or crossing[number] < crossing[best[here]]:
            best[here] = number
    return [*(number + 1 for number in best.values() if number < count - 1), count]


def _crossing_s(workload: Workload, units: Sequence[Sequence[int]]) -> list[float]:
    """Return, for each unit, the transfer seconds of the tensors that are made up to it and read after it."""
    _, transfer_s = mean_costs(workload)
    where = {task: number for number, unit in enumerate(units) for task in unit}
    change = [0.0] * (len(units) + 1)
    for tensor, took_s in zip(workload.tensors, transfer_s, strict=True):
        change[where[tensor.source]] += took_s
        change[max((where[reader] for reader in tensor.readers), default=where[tensor.source])] -= took_s
    return [float(value) for value in np.cumsum(change)]


@dataclass(frozen=True)
class Costs:
    """Seconds of stages [from block, to block), one table for each machine; transfers are over an average link."""

    compute_s: tuple[Loads, ...]
    """inf where the machine cannot run the stage, or has too little memory for it."""
    receive_s: tuple[Loads, ...]
    send_s: tuple[Loads, ...]


def costs(workload: Workload, found: Blocks) -> Costs:
    """Return the costs of all stages. A stage receives each tensor that it reads once, and sends each tensor
    that is read later once, however many stages read it."""
    where = np.zeros(len(workload.tasks), dtype=int)
    for number, tasks in enumerate(found.tasks):
        where[list(tasks)] = number
    count = len(found.tasks)
    received, sent = _corners(workload, where)
    compute, receive, send = [], [], []
    for machine in range(len(workload.machines)):
        out_s, in_s = _lengths(workload, machine)
        compute.append(_compute(workload, where, count, machine))
        receive.append(_sum_corners(received, in_s, count))
        send.append(_sum_corners(sent, out_s, count))
    return Costs(tuple(compute), tuple(receive), tuple(send))


def _compute(workload: Workload, where: Numbers, count: int, machine: int) -> Loads:
    seconds = np.array([task.compute_s[machine] for task in workload.tasks])
    never = np.isinf(seconds)
    nbytes = [task.memory_bytes for task in workload.tasks]

    def between(weights: Any) -> Loads:
        upto = np.concatenate([[0.0], np.cumsum(np.bincount(where, weights=weights, minlength=count))])
        return np.asarray(upto[None, :] - upto[:, None])

    stage_s = np.maximum(between(np.where(never, 0.0, seconds)), 0.0)
    stage_s[between(never.astype(float)) > 0] = np.inf
    stage_s[between(nbytes) > workload.machines[machine].memory_bytes] = np.inf
    return stage_s


def _lengths(workload: Workload, machine: int) -> tuple[Numbers, Numbers]:
    """Return the seconds to send each tensor from the machine, and to receive it there, on average over other machines."""
    others = [other for other in range(len(workload.machines)) if other != machine]
    if not others:
        nothing = np.zeros(len(workload.tensors))
        return nothing, nothing
    nbytes = np.array([tensor.nbytes for tensor in workload.tensors])
    found = []
    for pairs in ([(machine, other) for other in others], [(other, machine) for other in others]):
        latency_s = sum(workload.latency_s[a][b] for a, b in pairs) / len(pairs)
        per_byte_s = sum(1 / workload.bytes_per_s[a][b] for a, b in pairs) / len(pairs)
        length_s = latency_s + per_byte_s * nbytes
        for number, tensor in enumerate(workload.tensors):
            if tensor.transfer_s:
                length_s[number] = sum(workload.transfer_s(tensor, a, b) for a, b in pairs) / len(pairs)
        found.append(length_s)
    return found[0], found[1]


@dataclass(frozen=True)
class _Corners:
    """Rectangles of stages for which tensors count, as the signed corners of a sum over both axes."""

    tensor: list[int]
    row: list[int]
    column: list[int]
    sign: list[float]

    def add(self, tensor: int, rows: range, columns: range) -> None:
        for row, one in ((rows.start, 1.0), (rows.stop, -1.0)):
            for column, other in ((columns.start, 1.0), (columns.stop, -1.0)):
                self.tensor.append(tensor)
                self.row.append(row)
                self.column.append(column)
                self.sign.append(one * other)


def _corners(workload: Workload, where: Numbers) -> tuple[_Corners, _Corners]:
    """Return the corners of the stages [row, column) that receive each tensor, and of those that send it."""
    received, sent = _Corners([], [], [], []), _Corners([], [], [], [])
    last = int(where.max(initial=0)) + 2
    for number, tensor in enumerate(workload.tensors):
        source = before = int(where[tensor.source])
        readers = sorted({int(where[reader]) for reader in tensor.readers} - {source})
        for reader in readers:
            # The stages that begin after the previous reader, and end after this one.
            received.add(number, range(before + 1, reader + 1), range(reader + 1, last))
            before = reader
        if readers:
            sent.add(number, range(source + 1), range(source + 1, readers[-1] + 1))
    return received, sent


def _sum_corners(corners: _Corners, length_s: Numbers, count: int) -> Loads:
    size = count + 2
    index = np.array(corners.row, dtype=int) * size + np.array(corners.column, dtype=int)
    weights = np.array(corners.sign) * length_s[np.array(corners.tensor, dtype=int)]
    table = np.bincount(index, weights=weights, minlength=size * size).reshape(size, size)
    summed: Loads = np.maximum(table.cumsum(axis=0).cumsum(axis=1)[: count + 1, : count + 1], 0.0)
    return summed
