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
from edgepart.planner.placing.engine.local_search import ATTEMPTS, climb
from edgepart.planner.placing.placers.best_start import find_best_start
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register

STARTS = ("heft", "m-etf", "expert", "metis", "pipeline")
"""The placers from the best of whose answers climbing starts. The first two are always asked, the others while there is
time (best_start.py). For the tasks of a large graph there are only these two, and the second one is asked as the
others are."""

ALWAYS = 2

LARGE = 2000
"""The number of tasks above which a graph is contracted first."""

GROUPS = 1000
"""The number of groups to which a large graph is contracted."""

CONTRACT_S = 0.00005
"""The approximate seconds in which a task is contracted with others."""


@register("climb")
def climb_from_best(workload: Workload, asked: Asked) -> PlacementFound:
    """Improve the best answer of the quick placers, or `asked.start`, within the budget. Raises Infeasible if there
    is none."""
    until = asked.clock() + asked.budget_s
    if len(workload.tasks) <= LARGE:
        return ascend(workload, _find_start(workload, asked, STARTS), asked, until)
    start = _find_start(workload, asked, STARTS[:ALWAYS], always=1)
    if not has_time_to_contract(workload, until - asked.clock()):
        return ascend(workload, start, asked, until, "there was no time to contract the graph: ")
    groups = contract(workload, GROUPS)
    half_s = max(0.0, until - asked.clock()) / 2
    coarse = replace(asked, budget_s=half_s, start=None)
    try:
        found = _climb_groups(workload, groups, coarse)
    except Infeasible as error:  # Groups may be too large where single tasks are not.
        return ascend(workload, start, asked, until, f"no groups of tasks, as of these {error}; ")
    if found.value_s < start.value_s:
        start = replace(found, why=f"{len(groups)} groups of tasks ({found.why}):")
    return ascend(workload, start, asked, until)


def has_time_to_contract(workload: Workload, left_s: float) -> bool:
    """Whether contracting takes less than half of what is left."""
    return left_s >= 2 * CONTRACT_S * len(workload.tasks)


def _climb_groups(workload: Workload, groups: tuple[tuple[int, ...], ...], asked: Asked) -> PlacementFound:
    """Return what is found for the groups as a placement of the tasks."""
    until = asked.clock() + asked.budget_s
    coarse = coarsen(workload, groups)
    found = ascend(coarse, _find_start(coarse, asked, STARTS), asked, until)
    return settle(workload, expand(groups, found.placement), asked, found.why)


def _find_start(
    workload: Workload, asked: Asked, names: Sequence[str], always: int = ALWAYS
) -> PlacementFound:
    """Return the best answer of these placers, or `asked.start` if there is one."""
    if asked.start is not None:
        return replace(asked.start, why="a start of")
    best = find_best_start(workload, asked, names, always)
    return replace(best.found, why=f"{best.name}'s")


def ascend(
    workload: Workload, start: PlacementFound, asked: Asked, until: float, begun: str = ""
) -> PlacementFound:
    """Climb from `start` until the time is up or nothing better is likely to be found."""
    value = format_seconds(start.value_s, 4)
    if asked.clock() >= until:
        return replace(start, why=f"{begun}from {start.why} {value}, with no time left to climb")
    found = climb(
        workload,
        start.placement,
        objective=asked.objective,
        clock=asked.clock,
        until=until,
        schedule=start.schedule,
        attempts=ATTEMPTS,
        tell=asked.tell,
    )
    estimated = asked.objective == "latency" and not is_prepared()
    how = ", most of them only estimated, as schedules are not compiled (extra [climb])" if estimated else ""
    ended = "; more time is not likely to give more" if found.stale else ""
    why = f"{begun}from {start.why} {value}, {found.steps} placements tried{how}{ended}"
    if found.best.value_s >= start.value_s:
        return replace(start, why=why)
    return PlacementFound(found.best.placement, found.best.value_s, found.best.schedule, why=why)
