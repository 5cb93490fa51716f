"""Lessons: graphs that the network of `learned` is trained on, with what training needs of them again and again.
Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

import numpy as np

from edgepart.planner.errors import Infeasible
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.engine.flat_workload import Floats, Integers
from edgepart.planner.placing.engine.judge import Judge, Judged, judge_of
from edgepart.planner.placing.engine.local_search import climb
from edgepart.planner.placing.guided.decode import Decoded, SampleDecoder
from edgepart.planner.placing.guided.features import Features, describe
from edgepart.planner.placing.problem.schedule import PlacementSchedule
from edgepart.planner.placing.problem.workload import Workload


@dataclass(frozen=True)
class Lesson:
    """A graph to learn from."""

    workload: Workload
    features: Features
    decoder: SampleDecoder
    judge: Judge
    """What judges placements by latency."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of tasks and machines."""
        tasks, machines = self.features.flat.compute_s.shape
        return tasks, machines


def make_lesson(workload: Workload) -> Lesson:
    """Return the lesson of a graph. Raises Infeasible if some task fits on no machine."""
    features = describe(workload)
    return Lesson(workload, features, SampleDecoder(workload, features), judge_of(workload, "latency"))


def draw_lessons(
    random: Random, families: Sequence[str], sizes: tuple[int, int], machines: tuple[int, int]
) -> Iterator[Lesson]:
    """Yield graphs without end. Their sizes are drawn evenly by their logarithms, and their machines evenly, both with both
    ends."""
    while True:
        family = random.choice(families)
        size = round(sizes[0] * (sizes[1] / sizes[0]) ** random.random())
        try:
            yield make_lesson(draw_workload(family, random, size, random.randint(*machines)))
        except Infeasible:
            continue


def values_of(lesson: Lesson, decoded: Decoded) -> Floats:
    """Return the makespan of each placement (k,): of the better schedule of two, in the order in which it was
    decoded and by upward ranks on it; inf where machines lack memory."""
    found = np.full(len(decoded.placements), np.inf)
    columns = zip(decoded.placements, decoded.start_s, decoded.makespan_s.tolist(), strict=True)
    for row, (where, start_s, makespan_s) in enumerate(columns):
        placement = tuple(where.tolist())
        if not lesson.workload.short_bytes(placement):
            made = PlacementSchedule(placement, tuple(start_s.tolist()), (), makespan_s)
            found[row] = lesson.judge(where, Judged(where, makespan_s, made, ())).value_s
    return found


def best_climbed(lesson: Lesson, drawn: Decoded, seed: int, looks: int) -> Integers | None:
    """Return the placement (n,) that climbing finds from the best of those drawn and of single machines, in so many steps;
    None if none of these fits."""
    tasks, machines = lesson.shape
    alone = np.repeat(np.arange(machines)[:, None], tasks, axis=1)[lesson.features.whole]
    starts_s = np.repeat(-lesson.features.ranks[None], len(alone), axis=0)
    every = Decoded(
        np.vstack([drawn.placements, alone]),
        np.vstack([drawn.start_s, starts_s]),
        np.append(drawn.makespan_s, np.zeros(len(alone))),
    )
    values = values_of(lesson, every)
    best = int(values.argmin())
    if values[best] == np.inf:
        return None
    counter = count()
    found = climb(
        lesson.workload,
        tuple(every.placements[best].tolist()),
        objective="latency",
        clock=lambda: float(next(counter)),
        until=float(looks),
        seed=seed,
    )
    return found.best.where
