"""Layers: where pieces of a graph repeat, what makes one of them shorter makes every one of its kind shorter. Rules only.

A transformer has few kinds of pieces and many of each. So one of each kind is searched, small as it is, between the
machines where the shortest way through all pieces begins and ends it, and then that way is looked for again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.exact.bounds import latency_bound
from edgepart.planner.placing.exact.dominators import GraphPiece, pieces
from edgepart.planner.placing.exact.local_search import climb, judge_by_latency
from edgepart.planner.placing.exact.pieces import PiecePath, PiecePaths, fits
from edgepart.planner.placing.problem.schedule import PlacementSchedule
from edgepart.planner.placing.problem.workload import Workload

TRIES = 4
"""So often a way is searched in vain at most."""
SLICE_S = 2.0
"""The time limit of the first try of a path; each later one takes longer."""
NEAR = 1.2
"""What takes at most so many times as long as the shortest of its kind is climbed from, too."""


@dataclass(frozen=True)
class Layered:
    """What came of it."""

    schedule: PlacementSchedule | None
    """Shorter than what it began with, and fits; None where that was not found."""
    bound_s: float
    """No schedule of the whole is shorter; 0 where memory couples the pieces."""
    kinds: int
    pieces: int


def find_repeats(workload: Workload) -> tuple[GraphPiece, ...]:
    """The pieces, where most are of a kind with others; else none."""
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
    """`parts`: the pieces. `solvable`: whether CP-SAT can be given that."""
    total = sum(task.memory_bytes for task in workload.tasks)
    scarce = any(total > machine.memory_bytes for machine in workload.machines)
    search = _RepeatSearch(workload, _share_memory(parts) if scarce else tuple(parts), start, solvable, seed)
    search.run(clock, until)
    bound_s = 0.0 if scarce else search.ways.shortest(lower=True)[0]
    best = search.best if search.best.makespan_s < start.makespan_s else None
    return Layered(best, bound_s, len(search.ways.times), len(parts))


def _share_memory(parts: Sequence[GraphPiece]) -> tuple[GraphPiece, ...]:
    """Each with the part of every machine's memory that is its share of all that is kept, so that all fit together; but
    with room for each of its groups, as some pieces cannot be divided."""
    bare = [_without_entry(part) for part in parts]
    total = sum(part.kept_bytes for part in bare)
    return tuple(_with_memory(part, part.kept_bytes / total) for part in bare)


def _without_entry(part: GraphPiece) -> GraphPiece:
    """What it begins with is kept by the piece before."""
    if part.entry is None:
        return part
    tasks = list(part.workload.tasks)
    tasks[part.entry] = replace(tasks[part.entry], memory_bytes=0.0)
    return replace(part, workload=replace(part.workload, tasks=tuple(tasks)))


def _with_memory(part: GraphPiece, share: float) -> GraphPiece:
    most = max(
        sum(part.workload.tasks[task].memory_bytes for task in group) for group in part.workload.groups
    )
    machines = tuple(
        replace(machine, memory_bytes=min(machine.memory_bytes, max(machine.memory_bytes * share, most)))
        for machine in part.workload.machines
    )
    return replace(part, workload=replace(part.workload, machines=machines))


class _RepeatSearch:
    def __init__(
        self,
        workload: Workload,
        parts: tuple[GraphPiece, ...],
        start: PlacementSchedule,
        solvable: Callable[[Workload], bool],
        seed: int,
    ) -> None:
        self._workload = workload
        self._solvable = solvable
        self._seed = seed
        self._tries: Counter[int] = Counter()
        self.best = start
        self.ways = PiecePaths(workload, latency_bound, parts)
        for number, part in enumerate(parts):
            self._begin(number, part, start)

    def _begin(self, number: int, part: GraphPiece, start: PlacementSchedule) -> None:
        """Begin with what is known of the piece."""
        placement = tuple(start.placement[task] for task in part.tasks)
        here = -1 if part.entry is None else placement[part.entry]
        there = -1 if part.exit is None else placement[part.exit]
        way = self.ways.way(number, (here, there))
        if fits(way.workload, placement):
            order = [-start.start_s[task] for task in part.tasks]
            way.offer(dispatch(way.workload, placement))
            way.offer(dispatch(way.workload, placement, order))

    def run(self, clock: Callable[[], float], until: float) -> None:
        self.ways.shortest(lower=False)  # names all ways
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
        """That with the most to gain, of those that the shortest way has, or could soon have; None where all were tried."""
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
            judge_by_latency,
            clock=clock,
            until=clock() + (until - clock()) / 2 if solvable else until,
            schedule=way.schedule,
            seed=self._seed + tries,
        )
        way.offer(better.schedule)
        if solvable and clock() < until:
            way.search(until - clock(), self._seed + tries)
        self._tries[id(way)] = 0 if way.upper_s < before_s * 0.999 else tries + 1
