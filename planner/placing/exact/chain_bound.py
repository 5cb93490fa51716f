"""Chain bound: a lower bound on the makespan from stretches of a graph that must follow one another. Rules only.

Where nothing separates one layer from the next (no dominator), most tasks of a layer still come after one task and
before another. All that comes after the one and before the other runs between them. So the least seconds of such
stretches, which share no time, add up to a bound, whatever else runs meanwhile. The stretches follow one another along
the longest path; they end where little work runs beside it. The machines of their ends couple them, as those of pieces
between dominators (pieces.py).

Short stretches have good bounds without search, but what runs beside their many ends counts nowhere. So longer ones are
tried as well, whose bounds are improved by exact search, between the machines where the shortest path leads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from edgepart.planner.placing.exact.bounds import longest_way, path_bound
from edgepart.planner.placing.exact.dominators import GraphPiece, cut_piece
from edgepart.planner.placing.exact.pieces import PiecePaths
from edgepart.planner.placing.exact.window_bound import stretch_bound
from edgepart.planner.placing.problem.workload import Workload

SHARE = 0.5
"""Stretches end at this share of the longest path's tasks: those beside which the least runs. With all of them, much runs
beside the ends, and counts nowhere; with few, stretches are long, and their own bounds are weak."""


LONGER_TASKS = 16
"""How many tasks the longer stretches have on average, of those that come after one stretch's end and before the next."""
SEARCHED_TASKS = 60
"""The most tasks of a stretch that is searched: of more, nothing is proved in seconds."""


def chain_bound(
    workload: Workload, *, clock: Callable[[], float], until: float, share: float = SHARE
) -> float:
    """Return the bound in seconds. Once the clock says `until`, only the longest path of each stretch counts. Raises
    NotInstalled without OR-tools."""

    def bound(stretch: Workload) -> float:
        return stretch_bound(stretch) if clock() < until else path_bound(stretch)

    short = cut_stretches(workload, share)
    ways = PiecePaths(workload, bound, short)
    found = ways.shortest(lower=True)[0]
    every = round(LONGER_TASKS * len(short) / max(len(workload.tasks), 1))
    if every > 1 and clock() < until:
        ways = PiecePaths(workload, bound, cut_stretches(workload, share, every))
    return max(found, search_stretches(ways, clock, until)) * (1 - 1e-12)


def search_stretches(ways: PiecePaths, clock: Callable[[], float], until: float) -> float:
    """Return the least seconds through all stretches, once those that leave most open have been searched."""
    found, path = ways.shortest(lower=True)
    while clock() < until:
        times = Counter(map(id, path))
        unknown = [way for way in path if len(way.workload.tasks) <= SEARCHED_TASKS]
        for way in unknown:
            way.open()
        unknown = [way for way in unknown if not way.ended]
        if not unknown:
            break
        most = max(unknown, key=lambda way: (way.upper_s - way.lower_s) * times[id(way)])
        most.search(clock, min(clock() + most.slice_s, until))
        found, path = ways.shortest(lower=True)
    return found


def cut_stretches(workload: Workload, share: float, every: int = 1) -> list[GraphPiece]:
    """Return the stretches, from the first to the last; each is `every` short ones long."""
    way = longest_way(workload)[::-1]
    after, before = _places(workload, way)
    beside = _work_beside(workload, way, after, before)
    most = np.quantile(beside, share) if len(beside) else 0.0
    stops = [place for place, work_s in enumerate(beside) if work_s <= most][every - 1 :: every]
    inside: list[list[int]] = [[] for _ in range(len(stops) + 1)]
    ends = {way[place]: number for number, place in enumerate(stops)}
    for task in workload.order:
        number = bisect_right(stops, after[task])
        if task in ends:
            inside[ends[task]].append(task)
            inside[ends[task] + 1].append(task)
        elif number == len(stops) or before[task] <= stops[number]:
            inside[number].append(task)
    return [
        cut_piece(
            workload,
            tuple(tasks),
            way[stops[number - 1]] if number else None,
            way[stops[number]] if number < len(stops) else None,
        )
        for number, tasks in enumerate(inside)
        if tasks
    ]


def _places(workload: Workload, way: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return, for each task, the last place of the path that it comes after, or is at, and the first that it comes before,
    or is at; -1 and the path's length if there is none."""
    place = {task: number for number, task in enumerate(way)}
    after, before = [-1] * len(workload.tasks), [len(way)] * len(workload.tasks)
    for task in workload.order:
        after[task] = max((after[one] for one in workload.before[task]), default=-1)
        after[task] = place.get(task, after[task])
    for task in reversed(workload.order):
        before[task] = min((before[one] for one in workload.after[task]), default=len(way))
        before[task] = place.get(task, before[task])
    return after, before


def _work_beside(
    workload: Workload, way: Sequence[int], after: Sequence[int], before: Sequence[int]
) -> list[float]:
    """Return, for each place of the path, the least seconds of all tasks that come neither after it nor before it."""
    change = np.zeros(len(way) + 1)
    for number, task in enumerate(workload.tasks):
        if before[number] > after[number] + 1:
            change[after[number] + 1] += min(task.compute_s)
            change[before[number]] -= min(task.compute_s)
    return list(map(float, np.cumsum(change)[:-1]))
