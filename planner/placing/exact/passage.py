"""Passage: the shortest way through a graph's pieces, from the machine of one dominator to that of the next. Rules only.

What a piece takes between two machines is searched only where the shortest way, as far as known, leads; so the bound is
that of all ways, and few of them are looked at. Memory is counted in each piece, not over all of them: the bound holds all
the same, what is found has to be looked at by who asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgepart.planner.placing.exact.bounds import path_bound
from edgepart.planner.placing.exact.pieces import SAME, Ways
from edgepart.planner.placing.problem.schedule import Schedule
from edgepart.planner.placing.problem.workload import Workload


@dataclass(frozen=True)
class Passed:
    """What came of it."""

    schedule: Schedule | None
    """None where no way leads through."""
    bound_s: float
    pieces: int
    searched: int
    """Ways that were searched."""
    ended: bool
    """Whether nothing is left to search: what is found is the best, to within what times were rounded by."""


def passage(workload: Workload, *, clock: Callable[[], float], until: float, most_tasks: int) -> Passed:
    """The shortest known when the clock says `until`. Pieces of more than `most_tasks` tasks are not searched."""
    ways = Ways(workload, path_bound)
    searched = 0
    while True:
        lower_s, path = ways.shortest(lower=True)
        for way in path:
            way.open()
        upper_s, best = ways.shortest(lower=False)
        unknown = [w for w in path if not w.ended and len(w.workload.tasks) <= most_tasks]
        if not unknown or clock() >= until or lower_s >= upper_s * (1 - SAME):
            break
        way = max(unknown, key=lambda one: one.upper_s - one.lower_s)
        searched += 1
        left_s = until - clock()
        way.search(left_s if len(ways.known) == 1 else min(way.slice_s, left_s))
    found = ways.schedule(best)
    ended = found is not None and all(way.ended for way in path)
    return Passed(found, lower_s, len(ways.pieces), searched, ended)
