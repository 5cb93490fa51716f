"""Evaluation: find the value of a placement, in the same way for all placers, so that they can be compared. Rules only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgepart.planner.placing.engine.fit_memory import fit
from edgepart.planner.placing.engine.flat_workload import flatten
from edgepart.planner.placing.engine.judge import (
    as_record,
    book_in_order,
    find_ranks,
    make_schedule,
    mean_ranks,
)
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
    where, flat = np.array(placement, np.int64), flatten(workload)
    position = np.empty(len(where))
    position[flat.order] = -np.arange(len(where), dtype=float)
    own, given = np.asarray(find_ranks(workload, where)), [np.array(order) for order in orders]
    everyone = own, workload.once(mean_ranks), position, *given
    found = [make_schedule(workload, where, ranks) for ranks in everyone]
    found += [book_in_order(flat, where, -ranks) for ranks in (own, *given)]
    return as_record(where, min(found, key=lambda one: one.makespan_s))
