"""Asking placers, and every placement of a small workload; for tests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, permutations, product
from math import inf

from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import placer

QUICK = ("expert", "heft", "m-etf", "m-sct", "getf", "metis", "pipeline")


def asked(objective: str = "latency", budget_s: float = 1e6) -> Asked:
    """With a clock of its own: a second passes at each look."""
    ticks = count()
    return Asked(lambda: float(next(ticks)), objective, budget_s)


def found_by(name: str, workload: Workload, objective: str = "latency") -> PlacementFound:
    return placer(name)(workload, asked(objective))


def every_placement(workload: Workload) -> Iterator[tuple[int, ...]]:
    """All that keep groups together and fit."""
    machines = range(len(workload.machines))
    for chosen in product(machines, repeat=len(workload.groups)):
        placement = [0] * len(workload.tasks)
        for group, machine in zip(workload.groups, chosen, strict=True):
            for task in group:
                placement[task] = machine
        if obeyed(workload, tuple(placement)):
            yield tuple(placement)


def obeyed(workload: Workload, placement: tuple[int, ...]) -> bool:
    """Whether every machine can run what it has and keep it, and groups are together."""
    runs = all(task.compute_s[m] < inf for task, m in zip(workload.tasks, placement, strict=True))
    together = all(len({placement[task] for task in group}) == 1 for group in workload.groups)
    return runs and together and not workload.short_bytes(placement)


def shortest_s(workload: Workload, placement: tuple[int, ...]) -> float:
    """The makespan with the best of all ranks."""
    every = permutations(map(float, range(len(workload.tasks))))
    return min(dispatch(workload, placement, ranks).makespan_s for ranks in every)
