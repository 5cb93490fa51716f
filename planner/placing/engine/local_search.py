"""Climbing: improve a placement by moving a few neighbouring tasks at a time. Rules only.

This is late acceptance: a step is taken if its result is no worse than the placement some steps ago, so that
the search leaves local optima. A judge values placements (judge.py); tasks of a critical chain are moved more
often than others. Where schedules are not compiled, a batch of steps is estimated first, and only the most promising are
judged. Where a machine lacks room for what moves, other tasks leave it in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

import numpy as np

from edgepart.planner.placing.engine.batched_dispatch import batched_makespans
from edgepart.planner.placing.engine.fit_memory import choices
from edgepart.planner.placing.engine.flat_workload import FlatWorkload, Integers, flatten
from edgepart.planner.placing.engine.judge import (
    Judge,
    Judged,
    find_critical_chain,
    is_prepared,
    judge_of,
)
from edgepart.planner.placing.problem.schedule import PlacementSchedule
from edgepart.planner.placing.problem.workload import Placement, Workload

MEMORY = 30
"""How many steps ago the value is that a step is compared with."""

STALE = 400
"""The steps without an improvement after which climbing ends, plus one for each task."""

ATTEMPTS = 3
"""How many times in a row climbing may end without a better placement before nothing better is likely to be found."""

BATCH, PROMISING = 128, 2
"""Of how many steps that are estimated at once how many are judged. On graphs of 140 and 400 tasks this gained two
to four times as much in 4 s as judging every step; 32 of which 1, or 256 of which 4, gained about the same."""

EXCHANGES = 8
"""The most tries to find tasks that make room for others. Without exchanges, 58 to 70 % of the steps on a graph of
140 tasks found no room where four machines could each keep 28 % of it."""

BACK = 0.7
"""How often tasks that make room go where the others come from, and not to any machine."""

Step = Mapping[int, int]
"""Where each group that moves goes."""


@dataclass(frozen=True)
class Climbed:
    """What climbing led to."""

    best: Judged
    steps: int
    """The number of placements that were judged or estimated."""
    stale: bool
    """Whether it ended because nothing better is likely to be found."""


def climb(
    workload: Workload,
    placement: Placement,
    *,
    objective: str,
    clock: Callable[[], float],
    until: float,
    schedule: PlacementSchedule | None = None,
    seed: int = 0,
    attempts: int = 1,
    tell: Callable[[float], None] = lambda value_s: None,
) -> Climbed:
    """Return the best placement found by the time `until`, no worse than `placement` or its known `schedule`. When
    climbing ends sooner, it begins again from the best, until so many attempts in a row found nothing better. `tell`
    is called with the value that is better after an attempt."""
    judge = judge_of(workload, objective)
    where = np.array(placement, np.int64)
    now = _judge_start(workload, judge, where, schedule)
    flat = flatten(workload) if objective == "latency" and not is_prepared() else None
    steps = failed = 0
    while failed < attempts and clock() < until:
        found = _Climb(workload, judge, Random(seed), now, flat).run(clock, until)
        steps, seed, failed = steps + found.steps, seed + 1, failed + 1
        if found.best.value_s < now.value_s:
            now, failed = found.best, 0
            tell(now.value_s)
    return Climbed(now, steps, failed >= attempts)


def _judge_start(
    workload: Workload, judge: Judge, where: Integers, schedule: PlacementSchedule | None
) -> Judged:
    """Return the judgement of the start, by its own schedule if that is shorter than what the judge makes of it."""
    if schedule is None:
        return judge(where, None)
    like = Judged(where, schedule.makespan_s, schedule, ())
    now = judge(where, like)
    waiting = judge(where, replace(like, in_order=True))
    now = waiting if waiting.value_s < now.value_s else now
    if like.value_s < now.value_s:
        return replace(like, busy=find_critical_chain(workload, schedule), in_order=True)
    return now


class _Ascent(NamedTuple):
    best: Judged
    steps: int


class _Climb:
    def __init__(
        self, workload: Workload, judge: Judge, random: Random, now: Judged, flat: FlatWorkload | None
    ) -> None:
        self._workload = workload
        self._judge = judge
        self._random = random
        self._now = now
        self._flat = flat
        """What steps are estimated by, if they are."""
        self._group = workload.graph.group
        self._able = choices(workload)
        self._bytes = workload.group_bytes
        self._left_bytes = [machine.memory_bytes for machine in workload.machines]
        for group, nbytes in zip(workload.groups, self._bytes, strict=True):
            self._left_bytes[now.where[group[0]]] -= nbytes

    def run(self, clock: Callable[[], float], until: float) -> _Ascent:
        best = now = self._now
        passed = [now.value_s] * MEMORY
        turn = idle = tried = 0
        while clock() < until and idle < STALE + len(self._group):
            turn, idle = turn + 1, idle + 1
            steps = self._draw_steps()
            tried += len(steps)
            for step, where in self._most_promising(steps):
                then = self._judge(where, now)
                if then.value_s <= max(passed[turn % MEMORY], now.value_s):
                    self._take(step)
                    self._now = now = then
                    break
            passed[turn % MEMORY] = now.value_s
            if now.value_s < best.value_s:
                best, idle = now, 0
        return _Ascent(best, tried)

    def _draw_steps(self) -> list[Step]:
        count = 1 if self._flat is None else BATCH
        return [step for step in (self._draw_step() for _ in range(count)) if step]

    def _most_promising(self, steps: Sequence[Step]) -> Iterator[tuple[Step, Integers]]:
        """Yield the steps that are to be judged, the best estimated first, with where all tasks are after each."""
        rows = [self._after(step) for step in steps]
        if self._flat is None or not rows or self._now.made is None:
            yield from zip(steps, rows, strict=True)
            return
        place = np.empty(len(self._flat.order), np.int64)
        place[self._flat.order] = np.arange(len(place))
        # By the starts of what is now; tasks that start together are in the order in which they may.
        order = np.lexsort((place, np.asarray(self._now.made.start_s)))
        estimated_s = batched_makespans(self._flat, np.stack(rows), order)
        for number in np.argsort(estimated_s, kind="stable")[:PROMISING].tolist():
            yield steps[number], rows[number]

    def _draw_step(self) -> Step | None:
        """Return a step that moves a random task and some of its neighbours to another machine; None if it can be on no
        other machine, or there is no room."""
        random, now = self._random, self._now
        critical = len(now.busy) > 0 and random.random() < 0.7
        seed = int(random.choice(now.busy)) if critical else random.randrange(len(now.where))
        here = int(now.where[seed])
        others = [m for m in self._able[self._group[seed]] if m != here]
        if not others:
            return None
        around = (*self._workload.before[seed], *self._workload.after[seed])
        near = [m for m in (int(now.where[task]) for task in around) if m in others]
        there = random.choice(near) if near and random.random() < 0.5 else random.choice(others)
        return self._make_room(self._around(seed, here, there), here, there)

    def _around(self, seed: int, here: int, there: int) -> set[int]:
        """Return the group of `seed` and a random number of connected groups on the same machine."""
        size = 1
        while self._random.random() < 0.6 and size < 64:
            size *= 2
        wanted = self._random.randint((size + 1) // 2, size)
        where = self._now.where
        groups, edge, seen = {self._group[seed]}, [seed], {seed}
        while edge and len(groups) < wanted:
            task = edge.pop(self._random.randrange(len(edge)))
            for other in (*self._workload.after[task], *self._workload.before[task]):
                group = self._group[other]
                if other not in seen and where[other] == here and there in self._able[group]:
                    seen.add(other)
                    edge.append(other)
                    if len(groups) < wanted:
                        groups.add(group)
        return groups

    def _make_room(self, groups: set[int], here: int, there: int) -> Step | None:
        """Return the step that moves the groups from `here` to `there`, and if there is no room, connected groups that are
        there to other machines, most often to `here`; None if no such groups are found."""
        random, step = self._random, dict.fromkeys(groups, there)
        more_bytes = sum(self._bytes[group] for group in groups)
        lacking_bytes = more_bytes - self._left_bytes[there]
        if lacking_bytes <= 0:
            return step
        tasks = np.flatnonzero(self._now.where == there)
        for _ in range(EXCHANGES if len(tasks) else 0):
            seed = int(random.choice(tasks))
            able = [m for m in self._able[self._group[seed]] if m != there]
            if not able:
                continue
            away = here if here in able and random.random() < BACK else random.choice(able)
            others = self._around(seed, there, away)
            room_bytes = self._left_bytes[away] + (more_bytes if away == here else 0.0)
            if lacking_bytes <= sum(self._bytes[group] for group in others) <= room_bytes:
                return step | dict.fromkeys(others, away)
        return None

    def _after(self, step: Step) -> Integers:
        where = self._now.where.copy()
        for group, there in step.items():
            where[list(self._workload.groups[group])] = there
        return where

    def _take(self, step: Step) -> None:
        for group, there in step.items():
            here = self._now.where[self._workload.groups[group][0]]
            self._left_bytes[here] += self._bytes[group]
            self._left_bytes[there] -= self._bytes[group]
