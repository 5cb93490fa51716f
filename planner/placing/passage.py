"""Passage: the shortest way through a graph's pieces, from the machine of one dominator to that of the next. Rules only.

What a piece takes between two machines is searched only where the shortest way, as far as known, leads; so the bound is
that of all ways, and few of them are looked at. Memory is counted in each piece, not over all of them: the bound holds all
the same, what is found has to be looked at by who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from edgepart.planner.errors import Infeasible
from edgepart.planner.placing.bounds import path_bound
from edgepart.planner.placing.dispatch import dispatch
from edgepart.planner.placing.dominators import joined, pieces
from edgepart.planner.placing.fitting import fitted
from edgepart.planner.placing.heft import by_rank
from edgepart.planner.placing.intervals import solve
from edgepart.planner.placing.schedule import Schedule
from edgepart.planner.placing.workload import Pair, Workload

FIRST_S = 2.0
"""For a piece between two machines at first; each time more that it is come back to."""
MORE = 4.0
SAME = 1e-9
"""What is no further apart counts as equal, relative to it."""


@dataclass
class _Way:
    """A piece between two machines."""

    workload: Workload
    lower_s: float
    schedule: Schedule | None = None
    """The shortest known; None where none is."""
    ended: bool = False
    opened: bool = False
    slice_s: float = FIRST_S

    @property
    def upper_s(self) -> float:
        return self.schedule.makespan_s if self.schedule else inf

    def open(self) -> None:
        """Look at simple schedules, once. Where nothing fits that is easily thought of, there is nothing to begin at."""
        if not self.opened:
            self.opened = True
            self.schedule = opening(self.workload)
            self.ended = self.lower_s >= self.upper_s * (1 - SAME) or not self.schedule

    def search(self, budget_s: float) -> None:
        """For a better schedule and a better bound."""
        self.slice_s *= MORE
        if self.schedule is None:
            return
        found = solve(self.workload, budget_s=budget_s, start=self.schedule)
        if found.schedule and found.schedule.makespan_s < self.upper_s:
            self.schedule = found.schedule
        self.lower_s = max(self.lower_s, min(found.bound_s, self.upper_s))
        self.ended = found.ended


@dataclass(frozen=True)
class Passed:
    """What came of it."""

    schedule: Schedule | None
    """None where no way leads through."""
    bound_s: float
    pieces: int
    searched: int
    """Ways that were searched."""
    ended: bool
    """Whether nothing is left to search: what is found is the best, to within what times were rounded by."""


def passage(workload: Workload, *, clock: Callable[[], float], until: float, most_tasks: int) -> Passed:
    """The shortest known when the clock says `until`. Pieces of more than `most_tasks` tasks are not searched."""
    return _Passage(workload, most_tasks).run(clock, until)


class _Passage:
    def __init__(self, workload: Workload, most_tasks: int) -> None:
        self._workload = workload
        self._most_tasks = most_tasks
        self._pieces = pieces(workload)
        kinds: dict[object, int] = {}
        self._kinds = [kinds.setdefault(piece.likeness, len(kinds)) for piece in self._pieces]
        self._ways: dict[tuple[int, Pair], _Way] = {}
        self._searched = 0
        machines = range(len(workload.machines))
        self._stops: list[list[int]] = []
        """By border behind a piece, the machines that its task could be on."""
        for piece in self._pieces:
            row = () if piece.exit is None else piece.workload.tasks[piece.exit].compute_s
            self._stops.append([m for m in machines if row[m] < inf] if row else [-1])

    def run(self, clock: Callable[[], float], until: float) -> Passed:
        while True:
            lower_s, path = self._shortest(lower=True)
            for way in path:
                way.open()
            upper_s, best = self._shortest(lower=False)
            unknown = [w for w in path if not w.ended and len(w.workload.tasks) <= self._most_tasks]
            if not unknown or clock() >= until or lower_s >= upper_s * (1 - SAME):
                break
            way = max(unknown, key=lambda one: one.upper_s - one.lower_s)
            self._searched += 1
            left_s = until - clock()
            way.search(left_s if len(self._ways) == 1 else min(way.slice_s, left_s))
        parts = [(p, way.schedule) for p, way in zip(self._pieces, best, strict=False) if way.schedule]
        found = joined(self._workload, parts) if best else None
        ended = found is not None and not any(not way.ended for way in path)
        return Passed(found, lower_s, len(self._pieces), self._searched, ended)

    def _shortest(self, *, lower: bool) -> tuple[float, list[_Way]]:
        """Through all pieces, by what the ways take at least, or at most; inf and [] where none leads through."""
        reached: dict[int, tuple[float, list[_Way]]] = {-1: (0.0, [])}
        for number, stops in enumerate(self._stops):
            onwards: dict[int, tuple[float, list[_Way]]] = {}
            for there in stops:
                for here, (so_far_s, path) in reached.items():
                    way = self._way(number, (here, there))
                    took_s = so_far_s + (way.lower_s if lower else way.upper_s)
                    if took_s < onwards.get(there, (inf, []))[0]:
                        onwards[there] = (took_s, [*path, way])
            reached = onwards
        return min(reached.values(), key=lambda one: one[0], default=(inf, []))

    def _way(self, number: int, pair: Pair) -> _Way:
        key = self._kinds[number], pair
        if key not in self._ways:
            pinned = self._pieces[number].pinned(pair)
            self._ways[key] = _Way(pinned, path_bound(pinned))
        return self._ways[key]


def opening(workload: Workload) -> Schedule | None:
    """The shortest of a few simple schedules; None where none of them fits."""
    try:
        heft = fitted(workload, by_rank(workload).machine)
    except Infeasible:
        return None
    placements = [heft]
    for machine in range(len(workload.machines)):
        placements.append(
            tuple(
                machine if task.compute_s[machine] < inf else heft[t] for t, task in enumerate(workload.tasks)
            )
        )
    fitting = [placement for placement in placements if fits(workload, placement)]
    made = [dispatch(workload, placement) for placement in fitting]
    return min(made, key=lambda schedule: schedule.makespan_s, default=None)


def fits(workload: Workload, placement: Sequence[int]) -> bool:
    """Whether everything can run there, together with what it must be with, and has memory."""
    if any(task.compute_s[m] == inf for task, m in zip(workload.tasks, placement, strict=True)):
        return False
    if any(placement[task] != placement[group[0]] for group in workload.groups for task in group):
        return False
    return not workload.short_bytes(placement)
