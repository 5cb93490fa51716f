"""Judged: what a placement is worth, the same way for all placers, so that they can be compared. Rules only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgepart.planner.placing.engine.dispatch import dispatch, upward_ranks
from edgepart.planner.placing.engine.fit_memory import fit
from edgepart.planner.placing.engine.load import max_load
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound, PlacementSchedule
from edgepart.planner.placing.problem.workload import Placement, Workload


def settle(
    workload: Workload,
    placement: Placement,
    asked: Asked,
    why: str,
    *,
    orders: Iterable[Sequence[float]] = (),
    bound_s: float | None = None,
) -> PlacementFound:
    """The placement, made to fit if it does not (Infeasible where it cannot be), with its value for what was asked.

    For latency the shortest of its schedules by a few ranks: those of `orders` (by task, larger first: what the placer
    itself had in mind) and the usual ones. For throughput its largest load."""
    fits = fit(workload, placement)
    moved = sum(one != other for one, other in zip(placement, fits, strict=True))
    if moved:
        why = f"{why}; {moved} tasks moved to where there was memory"
    if asked.objective == "throughput":
        return PlacementFound(fits, max_load(workload, fits), bound_s=bound_s, why=why)
    schedule = find_shortest(workload, fits, orders)
    return PlacementFound(fits, schedule.makespan_s, schedule, bound_s, why=why)


def find_shortest(
    workload: Workload, placement: Placement, orders: Iterable[Sequence[float]] = ()
) -> PlacementSchedule:
    """The shortest schedule of a placement by a few ranks: `orders`, upward ranks on this placement and on average, and
    the order of the file."""
    position = [0.0] * len(workload.tasks)
    for number, task in enumerate(workload.order):
        position[task] = -float(number)
    tried = [upward_ranks(workload, placement), upward_ranks(workload), position, *orders]
    return min((dispatch(workload, placement, ranks) for ranks in tried), key=lambda one: one.makespan_s)
