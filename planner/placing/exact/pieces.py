"""Pieces of a graph, each between the machines of two dominators, and the shortest path through all of them.
Pure rules.

Pieces that differ only in names share their results. A piece is searched between two machines only if the
shortest path by the lower bounds so far leads through them, so that the bound covers all paths while few of
them are searched. Memory is counted piece by piece, not for their sum: the bound still holds, but the caller
has to check the schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from edgepart.planner.errors import Infeasible
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.fit_memory import fit
from edgepart.planner.placing.exact.bounds import path_bound
from edgepart.planner.placing.exact.dominators import GraphPiece, join_schedules, pieces
from edgepart.planner.placing.exact.latency_model import solve
from edgepart.planner.placing.placers.heft import place_by_rank
from edgepart.planner.placing.problem.schedule import PlacementSchedule
from edgepart.planner.placing.problem.workload import Pair, Workload

FIRST_S = 2.0
"""The time limit of the first search of a piece between two machines; each further search gets `MORE` times as long."""
MORE = 4.0
SAME = 1e-9
"""The relative difference up to which two times count as equal."""


@dataclass
class PiecePath:
    """A piece whose ends are on two given machines."""

    workload: Workload
    lower_s: float
    schedule: PlacementSchedule | None = None
    """The shortest known schedule; None if none is known."""
    ended: bool = False
    opened: bool = False
    slice_s: float = FIRST_S

    @property
    def upper_s(self) -> float:
        return self.schedule.makespan_s if self.schedule else inf

    def open(self) -> None:
        """Look at simple schedules, once. If none of them fits, there is nothing to begin a search with."""
        if not self.opened:
            self.opened = True
            self.offer(find_opening(self.workload))
            self.ended = self.lower_s >= self.upper_s * (1 - SAME) or not self.schedule

    def offer(self, schedule: PlacementSchedule | None) -> bool:
        """Keep the schedule if it is shorter than the known one; return whether it was kept."""
        if schedule is None or schedule.makespan_s >= self.upper_s:
            return False
        self.schedule = schedule
        return True

    def search(self, clock: Callable[[], float], until: float, seed: int = 0) -> None:
        """Search for a better schedule and a better bound until the clock says `until`."""
        self.slice_s *= MORE
        if self.schedule is None:
            return
        found = solve(self.workload, clock=clock, until=until, start=self.schedule, seed=seed)
        self.offer(found.schedule)
        self.lower_s = max(self.lower_s, min(found.bound_s, self.upper_s))
        self.ended = found.ended


class PiecePaths:
    """The pieces between all pairs of machines, each made when it is asked for."""

    def __init__(
        self,
        workload: Workload,
        bound: Callable[[Workload], float],
        parts: Sequence[GraphPiece] | None = None,
    ) -> None:
        """`bound` returns a lower bound on the seconds of a piece. `parts` are the pieces, if they are known."""
        self._workload = workload
        self._bound = bound
        self.pieces = pieces(workload) if parts is None else tuple(parts)
        kinds: dict[object, int] = {}
        self.kinds = [kinds.setdefault(piece.likeness, len(kinds)) for piece in self.pieces]
        self.times = Counter(self.kinds)
        """The number of pieces of each kind."""
        self.known: dict[tuple[int, Pair], PiecePath] = {}
        machines = range(len(workload.machines))
        self._stops: list[list[int]] = []
        """The machines that the dominator at the end of each piece could be on; [-1] if there is none."""
        for piece in self.pieces:
            row = () if piece.exit is None else piece.workload.tasks[piece.exit].compute_s
            self._stops.append([m for m in machines if row[m] < inf] if row else [-1])

    def way(self, number: int, pair: Pair) -> PiecePath:
        """Return piece `number` between the machines of `pair`; -1 stands for an end that it lacks."""
        key = self.kinds[number], pair
        if key not in self.known:
            pinned = self.pieces[number].pin(pair)
            self.known[key] = PiecePath(pinned, self._bound(pinned))
        return self.known[key]

    def shortest(self, *, lower: bool) -> tuple[float, list[PiecePath]]:
        """Return the length of the shortest path through all pieces and its parts, by lower bounds or by
        known schedules; inf and [] if no path leads through."""
        reached: dict[int, tuple[float, list[PiecePath]]] = {-1: (0.0, [])}
        for number, stops in enumerate(self._stops):
            onwards: dict[int, tuple[float, list[PiecePath]]] = {}
            for there in stops:
                for here, (so_far_s, path) in reached.items():
                    way = self.way(number, (here, there))
                    took_s = so_far_s + (way.lower_s if lower else way.upper_s)
                    if took_s < onwards.get(there, (inf, []))[0]:
                        onwards[there] = (took_s, [*path, way])
            reached = onwards
        return min(reached.values(), key=lambda one: one[0], default=(inf, []))

    def schedule(self, path: Sequence[PiecePath]) -> PlacementSchedule | None:
        """Return the schedules along a path, one after another; None if one of them is missing."""
        parts = [(piece, way.schedule) for piece, way in zip(self.pieces, path, strict=False) if way.schedule]
        return join_schedules(self._workload, parts) if path and len(parts) == len(self.pieces) else None


def find_opening(workload: Workload) -> PlacementSchedule | None:
    """The shortest of a few simple schedules; None if none of them fits."""
    try:
        heft = fit(workload, place_by_rank(workload).machine)
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
    """Whether each task can run on its machine, groups are together, and there is memory for everything."""
    if any(task.compute_s[m] == inf for task, m in zip(workload.tasks, placement, strict=True)):
        return False
    if any(placement[task] != placement[group[0]] for group in workload.groups for task in group):
        return False
    return not workload.short_bytes(placement)


@dataclass(frozen=True)
class Passed:
    """The result of a search through the pieces."""

    schedule: PlacementSchedule | None
    """The shortest schedule that was found; None if no path leads through."""
    bound_s: float
    pieces: int
    searched: int
    """The number of searches of a piece between two machines."""
    ended: bool
    """Whether nothing is left to search: the schedule is the best, to within the rounding of times."""


def passage(workload: Workload, *, clock: Callable[[], float], until: float, most_tasks: int) -> Passed:
    """Search for the shortest schedule until the clock says `until`. Pieces of more than `most_tasks` tasks
    are not searched."""
    ways = PiecePaths(workload, path_bound)
    searched = 0
    while True:
        lower_s, path = ways.shortest(lower=True)
        for way in path:
            way.open()
        upper_s, best = ways.shortest(lower=False)
        unknown = [w for w in path if not w.ended and len(w.workload.tasks) <= most_tasks]
        if not unknown or clock() >= until or lower_s >= upper_s * (1 - SAME):
            break
        way = max(unknown, key=lambda one: one.upper_s - one.lower_s)
        searched += 1
        way.search(clock, until if len(ways.known) == 1 else min(clock() + way.slice_s, until))
    found = ways.schedule(best)
    ended = found is not None and all(way.ended for way in path)
    return Passed(found, lower_s, len(ways.pieces), searched, ended)
