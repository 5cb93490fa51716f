"""Climb: the best answer of the quick placers, improved by moving a few tasks at a time until the budget is spent. Rules
only.

A graph of many tasks is first contracted to groups of tasks. What is found for these in half of the time is expanded, and
improved task by task in the other half, unless one quick placer is better task by task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgepart.planner.errors import Infeasible
from edgepart.planner.figures import format_seconds
from edgepart.planner.placing.engine.coarse_workload import coarsen, expand
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.judge import is_prepared
from edgepart.planner.placing.engine.local_search import climb
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import placer, register

STARTS = ("heft", "m-etf", "expert", "metis", "pipeline")
"""The placers from the best of whose answers climbing starts. The first two are always asked, the others while less than a
third of the budget is spent. For the tasks of a large graph there are only these two, and the second one is asked as the
others are."""

ALWAYS = 2

LARGE = 2000
"""The number of tasks above which a graph is contracted first."""

GROUPS = 1000
"""The number of groups to which a large graph is contracted."""

ATTEMPTS = 3
"""How many times in a row climbing may end without a better placement before the search does."""


@register("climb")
def climb_from_best(workload: Workload, asked: Asked) -> PlacementFound:
    """Improve the best answer of the quick placers, or `asked.start`, within the budget. Raises Infeasible if there
    is none."""
    until = asked.clock() + asked.budget_s
    if len(workload.tasks) <= LARGE:
        return _Ascent(workload, asked, until).run(_find_start(workload, asked, STARTS), "")
    start = _find_start(workload, asked, STARTS[:ALWAYS], always=1)
    groups = contract(workload, GROUPS)
    half_s = max(0.0, until - asked.clock()) / 2
    coarse = replace(asked, budget_s=half_s, start=None)
    try:
        found = _climb_groups(workload, groups, coarse)
    except Infeasible as error:  # Groups may be too large where single tasks are not.
        return _Ascent(workload, asked, until).run(start, f"no groups of tasks, as of these {error}; ")
    if found.value_s < start.value_s:
        start = replace(found, why=f"{len(groups)} groups of tasks ({found.why}):")
    return _Ascent(workload, asked, until).run(start, "")


def _climb_groups(workload: Workload, groups: tuple[tuple[int, ...], ...], asked: Asked) -> PlacementFound:
    """Return what is found for the groups as a placement of the tasks."""
    until = asked.clock() + asked.budget_s
    coarse = coarsen(workload, groups)
    found = _Ascent(coarse, asked, until).run(_find_start(coarse, asked, STARTS), "")
    return settle(workload, expand(groups, found.placement), asked, found.why)


def _find_start(
    workload: Workload, asked: Asked, names: Sequence[str], always: int = ALWAYS
) -> PlacementFound:
    """Return the best answer of these placers, or `asked.start` if there is one."""
    if asked.start is not None:
        return settle(workload, asked.start, asked, "a start of")
    begun_s, best, refused = asked.clock(), None, None
    for number, name in enumerate(names):
        if number >= always and best and asked.clock() - begun_s > asked.budget_s / 3:
            break
        try:
            found = placer(name)(workload, replace(asked, budget_s=asked.budget_s / 3))
        except Infeasible as error:
            refused = refused or error
            continue
        # Turns that machines take are not what climbing changes.
        if not found.replicas and (best is None or found.value_s < best.value_s):
            best = replace(found, why=f"{name}'s")
    if best is None:
        raise refused or Infeasible(f"{workload.name}: nothing fits")
    return best


class _Ascent:
    def __init__(self, workload: Workload, asked: Asked, until: float) -> None:
        self._workload = workload
        self._asked = asked
        self._until = until

    def run(self, start: PlacementFound, begun: str) -> PlacementFound:
        """Climb from `start` again and again, until the time is up or nothing better is likely to be found."""
        best, steps, failed, seed = start, 0, 0, 0
        while failed < ATTEMPTS and self._asked.clock() < self._until:
            found = climb(
                self._workload,
                best.placement,
                objective=self._asked.objective,
                clock=self._asked.clock,
                until=self._until,
                schedule=best.schedule,
                seed=seed,
            )
            steps, seed, failed = steps + found.steps, seed + 1, failed + 1
            if found.best.value_s < best.value_s:
                best = PlacementFound(found.best.placement, found.best.value_s, found.best.schedule)
                failed = 0
        how = "" if is_prepared() else ", most of them only estimated, as extra [climb] is not installed"
        ended = "" if failed < ATTEMPTS else "; more time is not likely to give more"
        why = f"{begun}from {start.why} {format_seconds(start.value_s, 4)}, {steps} placements tried{how}{ended}"
        return replace(best, why=why)
