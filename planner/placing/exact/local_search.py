"""Climbing: improve a placement by moving a few neighbouring tasks at a time. Rules only.

This is late acceptance: a step is taken if its result is no worse than the placement some steps ago, so that
the search leaves local optima. A judge values placements; tasks of a critical chain are moved more often than
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.fit_memory import choices
from edgepart.planner.placing.engine.load import loads
from edgepart.planner.placing.problem.schedule import PlacementSchedule
from edgepart.planner.placing.problem.workload import Placement, Workload

MEMORY = 30
"""How many steps ago the value is that a step is compared with."""

STALE = 400
"""The steps without an improvement after which climbing ends, plus one for each task."""


@dataclass(frozen=True)
class Judged:
    """A placement and its value."""

    placement: tuple[int, ...]
    value_s: float
    schedule: PlacementSchedule | None
    """The schedule, if latency is the objective."""
    busy: tuple[int, ...]
    """Tasks of which, roughly, at least one has to move for a better value."""


Judge = Callable[[Workload, Placement, Judged | None], Judged]
"""Judges a placement. The third argument may be the judgement of a similar placement."""


def judge_by_latency(workload: Workload, placement: Placement, like: Judged | None = None) -> Judged:
    """Judge a placement by its makespan when dispatched by its own ranks, or in the order of the schedule of `like`."""
    schedule = dispatch(workload, placement)
    if like is not None and like.schedule is not None:
        again = dispatch(workload, placement, [-start for start in like.schedule.start_s])
        schedule = min(schedule, again, key=lambda one: one.makespan_s)
    return Judged(schedule.placement, schedule.makespan_s, schedule, find_critical_chain(workload, schedule))


def judge_by_load(workload: Workload, placement: Placement, like: Judged | None = None) -> Judged:
    """Judge a placement by its largest load."""
    found = loads(workload, placement)
    most = max(range(len(found)), key=found.__getitem__)
    busy = tuple(task for task, machine in enumerate(placement) if machine == most)
    return Judged(tuple(placement), found[most], None, busy)


def find_critical_chain(workload: Workload, schedule: PlacementSchedule) -> tuple[int, ...]:
    """Return a chain of tasks from the end of the schedule to its start: each task waited for the next one in
    the chain, for its data or for its machine."""
    ends = [
        start + task.compute_s[m]
        for start, task, m in zip(schedule.start_s, workload.tasks, schedule.placement, strict=True)
    ]
    if not ends:
        return ()
    last_there: dict[tuple[int, float], int] = {(schedule.placement[t], end): t for t, end in enumerate(ends)}
    arrived = {(t.tensor, t.target): t.end_s for t in schedule.transfers}
    task = max(range(len(ends)), key=ends.__getitem__)
    chain, seen = [task], {task}
    while True:
        here = schedule.placement[task]
        came = [
            (
                arrived.get((number, here), ends[workload.tensors[number].source]),
                workload.tensors[number].source,
            )
            for number in workload.read[task]
        ]
        data_s, source = max(came, default=(-1.0, -1))
        if data_s < schedule.start_s[task]:
            source = last_there.get((here, schedule.start_s[task]), source)
        if source < 0 or source in seen:
            return tuple(chain)
        task = source
        chain.append(task)
        seen.add(task)


def climb(
    workload: Workload,
    placement: Placement,
    judge: Judge,
    *,
    clock: Callable[[], float],
    until: float,
    schedule: PlacementSchedule | None = None,
    seed: int = 0,
) -> Judged:
    """Return the best placement found by the time `until`, no worse than `placement` or its known `schedule`."""
    like = Judged(tuple(placement), schedule.makespan_s, schedule, ()) if schedule else None
    now = judge(workload, placement, like)
    if like is not None and schedule is not None and like.value_s < now.value_s:
        now = replace(like, busy=find_critical_chain(workload, schedule))
    return _Climb(workload, judge, Random(seed)).run(now, clock, until)


class _Climb:
    def __init__(self, workload: Workload, judge: Judge, random: Random) -> None:
        self._workload = workload
        self._judge = judge
        self._random = random
        self._group = [0] * len(workload.tasks)
        for number, group in enumerate(workload.groups):
            for task in group:
                self._group[task] = number
        self._able = choices(workload)
        self._bytes = [sum(workload.tasks[t].memory_bytes for t in group) for group in workload.groups]
        self._room = [machine.memory_bytes for machine in workload.machines]

    def run(self, now: Judged, clock: Callable[[], float], until: float) -> Judged:
        best = now
        passed = [now.value_s] * MEMORY
        step = idle = 0
        while clock() < until and idle < STALE + len(self._group):
            step, idle = step + 1, idle + 1
            moved = self._move(now)
            if moved is None:
                continue
            then = self._judge(self._workload, moved, now)
            if then.value_s <= passed[step % MEMORY] or then.value_s <= now.value_s:
                now = then
            passed[step % MEMORY] = now.value_s
            if now.value_s < best.value_s:
                best, idle = now, 0
        return best

    def _move(self, now: Judged) -> list[int] | None:
        """Return a placement with a random task and some of its neighbours on another machine; None if the
        task can be on no other machine, or they do not fit."""
        random, placement = self._random, now.placement
        critical = bool(now.busy) and random.random() < 0.7
        seed = random.choice(now.busy) if critical else random.randrange(len(placement))
        others = [m for m in self._able[self._group[seed]] if m != placement[seed]]
        if not others:
            return None
        near = [
            placement[t]
            for t in (*self._workload.before[seed], *self._workload.after[seed])
            if placement[t] in others
        ]
        there = random.choice(near) if near and random.random() < 0.5 else random.choice(others)
        groups = self._around(seed, placement, there)
        moved = list(placement)
        for group in groups:
            for task in self._workload.groups[group]:
                moved[task] = there
        return moved if self._holds(moved) else None

    def _around(self, seed: int, placement: Sequence[int], there: int) -> set[int]:
        """Return the group of `seed` and a random number of connected groups on the same machine."""
        size = 1
        while self._random.random() < 0.6 and size < 64:
            size *= 2
        wanted = self._random.randint((size + 1) // 2, size)
        groups, edge, seen = {self._group[seed]}, [seed], {seed}
        while edge and len(groups) < wanted:
            task = edge.pop(self._random.randrange(len(edge)))
            for other in (*self._workload.after[task], *self._workload.before[task]):
                group = self._group[other]
                if other not in seen and placement[other] == placement[seed] and there in self._able[group]:
                    seen.add(other)
                    edge.append(other)
                    if len(groups) < wanted:
                        groups.add(group)
        return groups

    def _holds(self, placement: Sequence[int]) -> bool:
        left = list(self._room)
        for group, nbytes in zip(self._workload.groups, self._bytes, strict=True):
            left[placement[group[0]]] -= nbytes
        return all(one >= 0 for one in left)
