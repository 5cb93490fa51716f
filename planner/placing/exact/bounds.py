"""Bounds: lower bounds on the value of any placement, found without search. Rules only."""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from edgepart.planner.placing.problem.workload import Workload

Array = NDArray[np.float64]

ROUNDS = 300
"""The number of rounds that adjust the prices of machines and of memory: a few hundred find good ones."""


def latency_bound(workload: Workload) -> float:
    """Return the largest of three lower bounds: the longest path, with each task on any machine for each
    reader; the load of the busiest machine; and the longest path when memory keeps tasks off their best
    machines."""
    way = longest_way(workload)
    return max(path_bound(workload), load_bound(workload), way_bound(workload, way))


def path_bound(workload: Workload) -> float:
    """Seconds until the last task ends if nothing waits and each task is placed anew for each of its readers."""
    return float(max((row.min() for row in workload.once(_ends)), default=0.0))


def longest_way(workload: Workload) -> list[int]:
    """Return, roughly, the path whose length is `path_bound`, from its last task to its first: each is
    followed by the task it reads from that ends last."""
    ends = workload.once(_ends)
    done = [float(row.min()) for row in ends]
    if not done:
        return []
    way = [max(range(len(done)), key=done.__getitem__)]
    while before := workload.before[way[-1]]:
        way.append(max(before, key=done.__getitem__))
    return way


def _ends(workload: Workload) -> Array:
    """Return the earliest end of each task on each machine, (tasks, machines)."""
    rows = np.array([task.compute_s for task in workload.tasks]).reshape(-1, len(workload.machines))
    ends: Array = earliest_starts(workload) + rows
    return ends


def earliest_starts(workload: Workload) -> Array:
    """Return the seconds until each task can start on each machine, (tasks, machines), if nothing waits and each task is
    placed anew for each of its readers."""
    rows = [np.array(task.compute_s) for task in workload.tasks]
    starts = np.zeros((len(rows), len(workload.machines)))
    table = TransferTable(workload)
    for task in workload.order:
        for number in workload.read[task]:
            source = workload.tensors[number].source
            came = ((starts[source] + rows[source])[:, None] + table.seconds(number)).min(axis=0)
            np.maximum(starts[task], came, out=starts[task])
    return starts


class TransferTable:
    """The seconds of transfers between all machines."""

    def __init__(self, workload: Workload) -> None:
        machines = range(len(workload.machines))
        self._tensors = workload.tensors
        self._latency_s = np.array(workload.latency_s) * (1 - np.eye(len(workload.machines)))
        self._per_byte_s = np.array(
            [[1 / workload.bytes_per_s[a][b] if a != b else 0.0 for b in machines] for a in machines]
        )

    def seconds(self, number: int) -> Array:
        """Return those of one tensor, [from, to]."""
        tensor = self._tensors[number]
        moved: Array = self._latency_s + tensor.nbytes * self._per_byte_s
        for pair, took_s in tensor.transfer_s.items():
            moved[pair] = took_s
        return moved


def load_bound(workload: Workload) -> float:
    """Return a lower bound on the seconds that the busiest machine computes, with divisible tasks, by linear
    duality with prices on machines and on memory. Any prices give a bound; a few hundred rounds find good
    ones."""
    return _Prices(workload, None).best()


def way_bound(workload: Workload, way: list[int]) -> float:
    """Return a lower bound on the seconds of the tasks of one path, one after another, if all tasks have to
    fit into memory. It is found as in `load_bound`."""
    return _Prices(workload, way).best()


class _Prices:
    """The Lagrangian bound: the minimum over placements of priced compute plus priced memory, minus the price
    of all memory that there is."""

    def __init__(self, workload: Workload, way: list[int] | None) -> None:
        groups, count = workload.groups, len(workload.machines)
        rows = np.array([task.compute_s for task in workload.tasks]).reshape(-1, count)
        self._able = np.array([np.isfinite(rows[list(group)]).all(axis=0) for group in groups])
        counted = np.where(np.isfinite(rows), rows, 0.0)
        if way is not None:
            kept = np.zeros(len(rows))
            kept[way] = 1.0
            counted = counted * kept[:, None]
        self._compute = np.array([counted[list(group)].sum(axis=0) for group in groups])
        self._bytes = np.array(workload.group_bytes)
        self._room = np.array([machine.memory_bytes for machine in workload.machines])
        self._limited = np.isfinite(self._room)
        self._shared = way is None
        """Whether the machines' prices add up to one, so that the busiest machine counts. If not, each price
        is one, and the sum of all machines counts."""

    def best(self) -> float:
        if not len(self._compute) or not self._able.any(axis=1).all():
            return 0.0
        count = self._compute.shape[1]
        logs = np.zeros(count)
        memory = np.zeros(count)
        scale_s = max(float(self._compute.mean()), 1e-300) * len(self._compute)
        per_byte = scale_s / max(float(self._bytes.sum()), 1e-300)
        found = 0.0
        for number in range(ROUNDS):
            prices = shares(logs) if self._shared else np.ones(count)
            value, load, over = self._value(prices, memory)
            found = max(found, value)
            step = 1 / (1 + number / 10)
            if self._shared:
                logs += step * load / max(float(load.max()), 1e-300)
            size = max(float(np.abs(over[self._limited]).sum()), 1e-300) if self._limited.any() else 1.0
            memory = np.where(self._limited, np.maximum(0.0, memory + step * per_byte * over / size), 0.0)
        return found * (1 - 1e-12)

    def _value(self, prices: Array, memory: Array) -> tuple[float, Array, Array]:
        """Return the bound at these prices and, of the placement that is then the cheapest, what each machine
        computes and the bytes by which it exceeds its memory."""
        cost = np.where(self._able, self._compute * prices + self._bytes[:, None] * memory, inf)
        chosen = cost.argmin(axis=1)
        rows = np.arange(len(chosen))
        count = len(prices)
        load: Array = np.bincount(chosen, self._compute[rows, chosen], count).astype(np.float64)
        kept: Array = np.bincount(chosen, self._bytes, count).astype(np.float64)
        room = np.where(self._limited, self._room, 0.0)
        value = float(cost[rows, chosen].sum() - (memory * room).sum())
        over: Array = np.where(self._limited, kept - room, 0.0)
        return value, load, over


def shares(logs: Array) -> Array:
    """Return positive numbers with these differences of logarithms, and with the sum 1."""
    raised: Array = np.exp(logs - logs.max())
    raised /= raised.sum()
    return raised
