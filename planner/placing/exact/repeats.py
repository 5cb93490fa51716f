"""Repeats: if pieces of a graph repeat, a shorter schedule of one makes all pieces of its kind shorter. Rules
only.

A transformer has few kinds of pieces and many of each. One piece of each kind, which is small, is therefore
searched between the machines where the shortest path through all pieces has its ends; then the shortest path
is found again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.local_search import climb
from edgepart.planner.placing.exact.bounds import path_bound
from edgepart.planner.placing.exact.dominators import GraphPiece, pieces
from edgepart.planner.placing.exact.pieces import PiecePath, PiecePaths, fits
from edgepart.planner.placing.exact.window_bound import stretch_bound
from edgepart.planner.placing.problem.schedule import PlacementSchedule
from edgepart.planner.placing.problem.workload import Workload

TRIES = 4
"""The most searches in a row of a piece between two machines that bring no improvement."""
SLICE_S = 2.0
"""The time limit, in seconds, of the first search of a piece between two machines; each search without an
improvement makes the next one longer."""
NEAR = 1.2
"""A piece is searched between machines where it takes at most this many times as long as on the shortest path."""


@dataclass(frozen=True)
class Layered:
    """The result of a search over pieces that repeat."""

    schedule: PlacementSchedule | None
    """A schedule that fits and is shorter than the first one; None if none was found."""
    bound_s: float
    """A lower bound: no schedule of the whole is shorter. 0 if memory couples the pieces."""
    kinds: int
    pieces: int


def find_repeats(workload: Workload) -> tuple[GraphPiece, ...]:
    """Return the pieces if most of them share their kind with another; () if not."""
    found = pieces(workload)
    times = Counter(piece.likeness for piece in found)
    return found if sum(n for n in times.values() if n > 1) > len(found) / 2 else ()


def improve_repeats(
    workload: Workload,
    start: PlacementSchedule,
    parts: Sequence[GraphPiece],
    *,
    clock: Callable[[], float],
    until: float,
    solvable: Callable[[Workload], bool],
    seed: int = 0,
) -> Layered:
    """Improve the schedule `start`. `parts` are the pieces; `solvable` says whether a piece is small enough for CP-SAT."""
    total = sum(task.memory_bytes for task in workload.tasks)
    scarce = any(total > machine.memory_bytes for machine in workload.machines)

    def bound(piece: Workload) -> float:
        return stretch_bound(piece) if clock() < until else path_bound(piece)

    ways = PiecePaths(workload, bound, _share_memory(parts) if scarce else tuple(parts))
    search = _RepeatSearch(workload, ways, start, solvable, seed)
    search.run(clock, until)
    bound_s = 0.0 if scarce else search.ways.shortest(lower=True)[0]
    best = search.best if search.best.makespan_s < start.makespan_s else None
    return Layered(best, bound_s, len(search.ways.times), len(parts))


def _share_memory(parts: Sequence[GraphPiece]) -> tuple[GraphPiece, ...]:
    """Return the pieces with less memory: each has the share of every machine's memory that it has of all
    bytes kept, so that all fit together, but room for each of its groups, as some pieces cannot be
    divided."""
    bare = [_without_entry(part) for part in parts]
    total = sum(part.kept_bytes for part in bare)
    return tuple(_with_memory(part, part.kept_bytes / total) for part in bare)


def _without_entry(part: GraphPiece) -> GraphPiece:
    """Return the piece without the memory of its first dominator, which the piece before keeps."""
    if part.entry is None:
        return part
    tasks = list(part.workload.tasks)
    tasks[part.entry] = replace(tasks[part.entry], memory_bytes=0.0)
    return replace(part, workload=replace(part.workload, tasks=tuple(tasks)))


def _with_memory(part: GraphPiece, share: float) -> GraphPiece:
    most = max(part.workload.group_bytes)
    machines = tuple(
        replace(machine, memory_bytes=min(machine.memory_bytes, max(machine.memory_bytes * share, most)))
        for machine in part.workload.machines
    )
    return replace(part, workload=replace(part.workload, machines=machines))


class _RepeatSearch:
    def __init__(
        self,
        workload: Workload,
        ways: PiecePaths,
        start: PlacementSchedule,
        solvable: Callable[[Workload], bool],
        seed: int,
    ) -> None:
        self._workload = workload
        self._solvable = solvable
        self._seed = seed
        self._tries: Counter[int] = Counter()
        self.best = start
        self.ways = ways
        for number, part in enumerate(ways.pieces):
            self._begin(number, part, start)

    def _begin(self, number: int, part: GraphPiece, start: PlacementSchedule) -> None:
        """Offer the piece its part of the schedule `start`."""
        placement = tuple(start.placement[task] for task in part.tasks)
        here = -1 if part.entry is None else placement[part.entry]
        there = -1 if part.exit is None else placement[part.exit]
        way = self.ways.way(number, (here, there))
        if fits(way.workload, placement):
            order = [-start.start_s[task] for task in part.tasks]
            way.offer(dispatch(way.workload, placement))
            way.offer(dispatch(way.workload, placement, order))

    def run(self, clock: Callable[[], float], until: float) -> None:
        self.ways.shortest(lower=False)  # Makes the pieces between all pairs of machines.
        for way in list(self.ways.known.values()):
            if clock() < until:
                way.open()
        while clock() < until:
            self._keep()
            if (chosen := self._next()) is None:
                return
            self._try(chosen, clock, min(until, clock() + SLICE_S * (1 + self._tries[id(chosen)])))
        self._keep()

    def _keep(self) -> None:
        _, path = self.ways.shortest(lower=False)
        found = self.ways.schedule(path)
        if found and found.makespan_s < self.best.makespan_s and fits(self._workload, found.placement):
            self.best = found

    def _next(self) -> PiecePath | None:
        """Return the piece between two machines that has the most to gain, of those on the shortest path and
        those nearly as short; None if all were tried."""
        _, path = self.ways.shortest(lower=False)
        taken = {kind: way.upper_s for kind, way in zip(self.ways.kinds, path, strict=False) if way.schedule}
        found: PiecePath | None = None
        most_s = 0.0
        for (kind, _), way in self.ways.known.items():
            tries = self._tries[id(way)]
            if tries >= TRIES or way.ended or way.upper_s > NEAR * taken.get(kind, 0.0):
                continue
            gain_s = self.ways.times[kind] * (taken[kind] - way.lower_s) / 2.0**tries
            if way.upper_s > taken[kind]:
                gain_s /= 4
            if gain_s > most_s:
                found, most_s = way, gain_s
        return found

    def _try(self, way: PiecePath, clock: Callable[[], float], until: float) -> None:
        assert way.schedule is not None, "what has none is not near"
        before_s, tries = way.upper_s, self._tries[id(way)]
        solvable = self._solvable(way.workload)
        better = climb(
            way.workload,
            way.schedule.placement,
            objective="latency",
            clock=clock,
            until=clock() + (until - clock()) / 2 if solvable else until,
            schedule=way.schedule,
            seed=self._seed + tries,
        )
        way.offer(better.best.schedule)
        if solvable and clock() < until:
            way.search(clock, until, self._seed + tries)
        self._tries[id(way)] = 0 if way.upper_s < before_s * 0.999 else tries + 1
