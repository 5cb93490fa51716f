"""What GDP's network is told of workloads, as arrays. Rules only.

The source (GDP, 2019, as a lecture of March 2020 presents it) tells the network each operator's type, its output's shape
and the ids of its neighbours. The rest is ours. Ids are left out, as they mean nothing in another graph: neighbours are
told as rows to gather. A workload has bytes in place of shapes. As our machines differ, each task comes with its seconds
on each of them. Costs are logarithms of ratios, so that a network has the same view of a graph ten times as slow.

Rows are tasks in topological order, cut into segments of `SEGMENT` rows; the last segment of a graph is filled up with
empty rows. Several graphs may lie one behind another. Columns of machines are in the order of their speed, the fastest
first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, log1p
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from edgepart.planner.placing.engine.flat_workload import Floats, Integers
from edgepart.planner.placing.engine.speeds import order_by_speed
from edgepart.planner.placing.problem.workload import Workload

SEGMENT = 128
"""The rows that attend to each other and to those of the segment before (ours)."""

MOST_NEIGHBOURS = 16
"""The most neighbours of a task, in either direction, that its embedding looks at: those with the most bytes between
(GraphSAGE draws some at random)."""

OPS = 64
"""The number of classes that operators' types are hashed into."""

MOST_LOG = 6.0
"""Logarithms of ratios are cut off at this size."""

OF_TASK = 4
"""Numbers of a task that are not of a machine."""

OF_MACHINE = 3
"""Numbers of a task for each machine."""

INPUTS = ("ops", "numbers", "sources", "readers", "real", "able", "continues")
"""The names of the network's inputs, in their order."""


def width_of(machines: int) -> int:
    """Return the columns of `GdpFeatures.numbers`."""
    return OF_TASK + OF_MACHINE * machines


@dataclass(frozen=True)
class GdpFeatures:
    """One or more workloads of d machines each, as r rows; r is a multiple of `SEGMENT`."""

    ops: Integers
    """(r,). The class of each task's operator; 0 for empty rows."""
    numbers: NDArray[np.float32]
    """(r, f). Costs, as `width_of` counts them."""
    sources: Integers
    """(r, k). The rows of the tasks that each task reads from; r where there are fewer than k."""
    readers: Integers
    """(r, k). The rows of the tasks that read from each task, likewise."""
    real: NDArray[np.float32]
    """(r,). 1 for tasks, and 0 for empty rows."""
    able: NDArray[np.float32]
    """(r, d). 1 where a machine can run the task, and 0 elsewhere."""
    continues: NDArray[np.float32]
    """(r / SEGMENT,). 1 for segments whose graph began before them, and 0 for the first one of each graph."""
    rows: tuple[Integers, ...]
    """For each workload, (n,): the row whose decision holds for each task. Tasks that share a machine have one row."""
    machines: tuple[Integers, ...]
    """For each workload, (d,): the machine of each column."""

    def inputs(self) -> Mapping[str, NDArray[np.generic]]:
        """Return the network's inputs, by name."""
        return {name: getattr(self, name) for name in INPUTS}

    def placements(self, columns: Integers, which: int = 0) -> Integers:
        """Return the machine of each task of workload number `which`, for columns that were decided: (..., r) to
        (..., n)."""
        return np.asarray(self.machines[which][columns[..., self.rows[which]]])


def features_of(workload: Workload) -> GdpFeatures:
    """Return the workload as the network sees it."""
    count, order = len(workload.tasks), workload.order
    rows = -(-max(count, 1) // SEGMENT) * SEGMENT
    row_of = np.zeros(count, np.int64)
    row_of[list(order)] = np.arange(count)
    numbers = np.zeros((rows, width_of(len(workload.machines))), np.float32)
    able = np.ones((rows, len(workload.machines)), np.float32)
    ops, real = np.zeros(rows, np.int64), np.zeros(rows, np.float32)
    columns = np.array(order_by_speed(workload), np.int64)
    scale = _Scale(workload, columns)
    for row, task in enumerate(order):
        ops[row] = crc32(workload.tasks[task].op.encode()) % OPS
        numbers[row] = scale.numbers(task)
        able[row] = [workload.tasks[task].compute_s[machine] < inf for machine in columns]
        real[row] = 1.0
    leads = np.arange(count)
    for group in workload.groups:
        leads[list(group)] = group[0]
    before, after = _neighbours(workload)
    continues = np.ones(rows // SEGMENT, np.float32)
    continues[0] = 0.0
    return GdpFeatures(
        ops,
        numbers,
        _padded(before, order, row_of, rows),
        _padded(after, order, row_of, rows),
        real,
        able,
        continues,
        (row_of[leads],),
        (columns,),
    )


def joined(parts: Sequence[GdpFeatures]) -> GdpFeatures:
    """Return workloads of the same number of machines one behind another."""
    total = sum(len(part.ops) for part in parts)
    width = max(max(part.sources.shape[1], part.readers.shape[1]) for part in parts)
    sources, readers, rows, at = [], [], [], 0
    for part in parts:
        sources.append(_moved(part.sources, at, total, width))
        readers.append(_moved(part.readers, at, total, width))
        rows += [one + at for one in part.rows]
        at += len(part.ops)
    return GdpFeatures(
        np.concatenate([part.ops for part in parts]),
        np.concatenate([part.numbers for part in parts]),
        np.concatenate(sources),
        np.concatenate(readers),
        np.concatenate([part.real for part in parts]),
        np.concatenate([part.able for part in parts]),
        np.concatenate([part.continues for part in parts]),
        tuple(rows),
        tuple(one for part in parts for one in part.machines),
    )


class _Scale:
    """The numbers of tasks, each in proportion to what is usual in its workload."""

    def __init__(self, workload: Workload, columns: Integers) -> None:
        self._workload, self._columns = workload, columns.tolist()
        self._pairs = [(a, b) for a in self._columns for b in self._columns if a != b]
        least_s = [seconds for task in workload.tasks if (seconds := min(task.compute_s)) < inf]
        self._usual_s = sum(least_s) / max(len(least_s), 1) or 1.0
        made = [sum(workload.tensors[t].nbytes for t in written) for written in workload.written]
        self._made_bytes: list[float] = made
        self._usual_bytes = sum(made) / max(len(made), 1) or 1.0
        self._kept_bytes = sum(task.memory_bytes for task in workload.tasks) or 1.0

    def numbers(self, task: int) -> list[float]:
        workload, one = self._workload, self._workload.tasks[task]
        found = [
            _ratio(self._made_bytes[task], self._usual_bytes),
            len(workload.tasks) * one.memory_bytes / self._kept_bytes,
            log1p(len(workload.before[task])),
            log1p(len(workload.after[task])),
        ]
        for here in self._columns:
            room = workload.machines[here].memory_bytes / self._kept_bytes
            found += [
                _ratio(one.compute_s[here], self._usual_s),
                _ratio(self._sending_s(task, here), self._usual_s),
                min(room, 2.0),
            ]
        return [min(number, MOST_LOG) for number in found]

    def _sending_s(self, task: int, here: int) -> float:
        """Return the seconds that what the task makes takes from `here` to another machine, on average."""
        workload = self._workload
        others = [there for there in self._columns if there != here]
        took_s = [
            workload.transfer_s(workload.tensors[number], here, there)
            for number in workload.written[task]
            for there in others
        ]
        return sum(took_s) / len(others) if others else 0.0


def _ratio(value: float, usual: float) -> float:
    """Return the logarithm of a ratio, cut off at `MOST_LOG` on both sides."""
    if value <= 0.0:
        return -MOST_LOG
    return MOST_LOG if value == inf else max(-MOST_LOG, min(MOST_LOG, log(value / usual)))


def _neighbours(workload: Workload) -> tuple[list[list[int]], list[list[int]]]:
    """Return the tasks that each task reads from and those that read from it: at most `MOST_NEIGHBOURS` each, those with
    the most bytes between."""
    carried: list[dict[int, float]] = [{} for _ in workload.tasks]
    for tensor in workload.tensors:
        for reader in tensor.readers:
            before = carried[reader]
            before[tensor.source] = before.get(tensor.source, 0.0) + tensor.nbytes

    def heaviest(task: int, ones: Sequence[int], forward: bool) -> list[int]:
        nbytes = {one: carried[one][task] if forward else carried[task][one] for one in ones}
        return sorted(ones, key=lambda one: (-nbytes[one], one))[:MOST_NEIGHBOURS]

    tasks = range(len(workload.tasks))
    return (
        [heaviest(task, workload.before[task], False) for task in tasks],
        [heaviest(task, workload.after[task], True) for task in tasks],
    )


def _padded(lists: Sequence[Sequence[int]], order: Sequence[int], row_of: Integers, rows: int) -> Integers:
    """Return the rows of each task's neighbours, (rows, k), filled up with `rows`."""
    found = np.full((rows, max([1, *map(len, lists)])), rows, np.int64)
    for row, task in enumerate(order):
        found[row, : len(lists[task])] = row_of[list(lists[task])]
    return found


def _moved(neighbours: Integers, at: int, total: int, width: int) -> Integers:
    """Return a part's neighbours as rows of the whole."""
    found = np.full((len(neighbours), width), total, np.int64)
    found[:, : neighbours.shape[1]] = np.where(neighbours < len(neighbours), neighbours + at, total)
    return found


def log_odds(logits: Floats) -> Floats:
    """Return the logarithms of the probabilities of each column, by a softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
