"""Evaluation: find the value of a placement, in the same way for all placers, so that they can be compared. Rules only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgepart.planner.placing.engine.dispatch import upward_ranks
from edgepart.planner.placing.engine.fit_memory import fit
from edgepart.planner.placing.engine.flat_workload import flatten, unflatten
from edgepart.planner.placing.engine.judge import book_in_order, dispatcher_of
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
    """Return the placement with its value for the objective, after it is made to fit if it does not. Raises
    Infeasible if it cannot be made to fit.

    For latency, the value is the makespan of its shortest schedule by several ranks: those of `orders` (one
    for each task, larger first: the placer's own order) and those of `find_shortest`. For throughput, it is
    the largest load."""
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
    """Return the shortest schedule of a placement by several ranks: `orders`, the upward ranks on this
    placement and on average, and the order of the file. By the first and the second of these, tasks are also booked one
    after another, so that machines may wait for something better."""
    position = [0.0] * len(workload.tasks)
    for number, task in enumerate(workload.order):
        position[task] = -float(number)
    orders, own = list(orders), upward_ranks(workload, placement)
    schedule, where, flat = dispatcher_of(workload), np.array(placement, np.int64), flatten(workload)
    found = [schedule(placement, ranks) for ranks in (own, upward_ranks(workload), position, *orders)]
    for ranks in (own, *orders):
        found.append(unflatten(where, book_in_order(flat, where, [-rank for rank in ranks])))
    return min(found, key=lambda one: one.makespan_s)
