"""Window bound: a lower bound on the makespan from what each machine computes between the earliest time at which it can
have its first input and the latest at which its last output has to leave. Rules only.

What a machine computes is moved there and back. So a machine that is used has less time than the makespan by the least
head of its tasks (the seconds until one can start there) and the least tail (the seconds that must follow). Which machines
are used is not known: the bound is the least over all sets of them. For each set it is that of divisible tasks, by linear
duality, as in bounds.py.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from edgepart.planner.placing.exact.bounds import Array, TransferTable, earliest_starts, shares
from edgepart.planner.placing.problem.workload import Workload

MOST_MACHINES = 5
"""The most machines of which all sets are tried. With more, the bound is 0."""
ROUNDS = 60
"""The most rounds that adjust the prices of one set of machines."""


def stretch_bound(workload: Workload) -> float:
    """Return a lower bound on the seconds of a stretch of a graph: its longest path, or its window bound."""
    starts = earliest_starts(workload)
    rows = np.array([task.compute_s for task in workload.tasks]).reshape(starts.shape)
    path_s = float((starts + rows).min(axis=1).max(initial=0.0))
    # In a stretch of three tasks, two of them its ends, nothing runs beside another.
    return path_s if len(workload.tasks) <= 3 else max(path_s, window_bound(workload, starts))


def window_bound(workload: Workload, starts: Array | None = None) -> float:
    """Return the bound in seconds. `starts` are the workload's `earliest_starts`, if they are known."""
    count = len(workload.machines)
    if count > MOST_MACHINES:
        return 0.0
    rows = np.array([task.compute_s for task in workload.tasks]).reshape(-1, count)
    works = np.isfinite(rows) & (rows > 0)
    heads, tails = (
        np.where(works, seconds, np.inf).min(axis=0, initial=np.inf)
        for seconds in (earliest_starts(workload) if starts is None else starts, _least_tails(workload))
    )
    windows = heads + tails
    grouped = np.array([rows[list(group)].sum(axis=0) for group in workload.groups])
    if (grouped == 0).any(axis=1).all():
        return 0.0  # All can be where it takes no time.
    least = np.inf
    for size in range(1, count + 1):
        for used in combinations(range(count), size):
            least = min(least, _price(grouped, windows, used, least))
    return float(least) * (1 - 1e-12) if least < np.inf else 0.0


def _price(compute_s: Array, windows: Array, used: tuple[int, ...], enough: float) -> float:
    """Return a lower bound for placements that use these machines. The search for a higher one ends at `enough`."""
    free = np.flatnonzero((compute_s == 0).any(axis=1))
    columns = list(used)
    cost = np.delete(compute_s[:, columns], free, axis=0)
    if not np.isfinite(cost).any(axis=1).all():
        return np.inf  # Some task can run on none of them.
    if not np.isfinite(windows[columns]).all():
        return np.inf  # One of them can compute nothing, so that it is not used.
    logs, found, every = np.zeros(len(columns)), 0.0, np.arange(len(cost))
    for number in range(ROUNDS):
        prices = shares(logs)
        priced = cost * prices
        chosen = priced.argmin(axis=1)
        value = float(priced[every, chosen].sum() + (prices * windows[columns]).sum())
        found = max(found, value)
        if found >= enough or len(columns) == 1:
            break
        load = np.bincount(chosen, cost[every, chosen], len(columns)) + windows[columns]
        logs += load / max(float(load.max()), 1e-300) / (1 + number / 10)
    return found


def _least_tails(workload: Workload) -> Array:
    """Return the least seconds that follow each task on each machine, (tasks, machines)."""
    rows = [np.array(task.compute_s) for task in workload.tasks]
    tails = np.zeros((len(rows), len(workload.machines)))
    table = TransferTable(workload)
    for task in reversed(workload.order):
        for number in workload.written[task]:
            moved = table.seconds(number)
            for reader in workload.tensors[number].readers:
                behind = (moved + (rows[reader] + tails[reader])[None, :]).min(axis=1)
                np.maximum(tails[task], behind, out=tails[task])
    return tails
