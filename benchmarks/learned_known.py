"""The room below HEFT: the best makespan that is known of a graph, and a bound that no placement is below.

What a network gains over HEFT says little without what can be gained. So climbing and moirai go on, for some seconds, from
the best that any placer or network found. What they find shows how much can be had at least, the bound how much at most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from edgepart.planner.errors import NotInstalled
from edgepart.planner.placing.exact.bounds import latency_bound
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload

CLIMBED = 0.5
"""The part of the time for climbing. The rest is moirai's, which also proves the bound."""


@dataclass(frozen=True)
class BestKnown:
    """What is known of the best makespan of a graph, in seconds."""

    value_s: float
    """The shortest that was found."""
    bound_s: float
    """None is shorter."""


def find_best_known(workload: Workload, found: Sequence[PlacementFound], seconds: float) -> BestKnown:
    """Go on from the best of `found` for so many seconds. Without OR-tools all of them are for climbing, and the bound is
    one that takes no search."""
    begun_s = time.perf_counter()
    best = min(found, key=lambda one: one.value_s)
    try:
        best = _improve(workload, "climb", best, CLIMBED * seconds)
        best = _improve(workload, "moirai", best, begun_s + seconds - time.perf_counter())
    except NotInstalled:
        best = _improve(workload, "climb", best, begun_s + seconds - time.perf_counter())
    return BestKnown(best.value_s, max(best.bound_s or 0.0, latency_bound(workload)))


def _improve(workload: Workload, name: str, best: PlacementFound, seconds: float) -> PlacementFound:
    """Return what the placer makes of `best`, which is no longer."""
    asked = Asked(time.perf_counter, budget_s=max(0.0, seconds), start=best)
    return min(find(workload, name, asked), best, key=lambda one: one.value_s)
