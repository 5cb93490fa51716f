"""Lessons: graphs that the network of `learned` is trained on, with what training needs of them again and again.
Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from random import Random

import numpy as np

from edgepart.planner.errors import Infeasible
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.engine.flat_workload import Floats, Integers
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

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of tasks and machines."""
        tasks, machines = self.features.flat.compute_s.shape
        return tasks, machines


def make_lesson(workload: Workload) -> Lesson:
    """Return the lesson of a graph. Raises Infeasible if some task fits on no machine."""
    features = describe(workload)
    return Lesson(workload, features, SampleDecoder(workload, features))


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
    """Return the makespan of each placement (k,); inf where machines lack memory."""
    kept = np.array([task.memory_bytes for task in lesson.workload.tasks])
    room = np.array([machine.memory_bytes for machine in lesson.workload.machines])
    taken = [np.bincount(where, kept, len(room)) for where in decoded.placements]
    return np.where((np.array(taken) <= room).all(axis=1), decoded.makespan_s, np.inf)


def best_climbed(lesson: Lesson, drawn: Decoded, seed: int, looks: int) -> Integers | None:
    """Return the placement (n,) that climbing finds from the best of those drawn and of single machines, in so many steps;
    None if none of these fits."""
    tasks, machines = lesson.shape
    alone = np.repeat(np.arange(machines)[:, None], tasks, axis=1)[lesson.features.whole]
    every = Decoded(
        np.vstack([drawn.placements, alone]),
        np.vstack([drawn.start_s, np.repeat(lesson.features.before_s[None], len(alone), axis=0)]),
        np.append(drawn.makespan_s, lesson.features.flat.compute_s.sum(axis=0)[lesson.features.whole]),
    )
    values = values_of(lesson, every)
    best = int(values.argmin())
    if values[best] == np.inf:
        return None
    placement, starts_s = tuple(every.placements[best].tolist()), tuple(every.start_s[best].tolist())
    counter = count()
    found = climb(
        lesson.workload,
        placement,
        objective="latency",
        clock=lambda: float(next(counter)),
        until=float(looks),
        schedule=PlacementSchedule(placement, starts_s, (), inf),
        seed=seed,
    )
    return found.best.where
