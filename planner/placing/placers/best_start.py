"""Best start: the best answer of several placers, for those that improve one. Rules only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgepart.planner.errors import Infeasible
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import placer

LONGER = 2.0
"""How many times as long as the slowest so far another placer may take."""


@dataclass(frozen=True)
class BestStart:
    """The answer to start from."""

    name: str
    """The placer that gave it."""
    found: PlacementFound
    left_out: tuple[str, ...]
    """The placers that there was no time to ask."""


def find_best_start(workload: Workload, asked: Asked, names: Sequence[str], always: int) -> BestStart:
    """Return the best answer of these placers without replicas, as turns that machines take are not what is improved.
    The first `always` are asked in any case, the others while less than half of the budget is spent, and the rest is
    enough for one that takes `LONGER` times as long as the slowest so far.

    Raises Infeasible, as the first of them that refused, if none of them finds a placement."""
    until_s = asked.clock() + asked.budget_s
    best: tuple[str, PlacementFound] | None = None
    refused: Infeasible | None = None
    left_out, slowest_s = [], 0.0
    for number, name in enumerate(names):
        left_s = max(0.0, until_s - asked.clock())
        if number >= always and best and left_s < max(asked.budget_s / 2, LONGER * slowest_s):
            left_out.append(name)
            continue
        try:
            found = placer(name)(workload, replace(asked, budget_s=left_s / 3))
        except Infeasible as error:
            refused = refused or error
            continue
        slowest_s = max(slowest_s, left_s - max(0.0, until_s - asked.clock()))
        if not found.replicas and (best is None or found.value_s < best[1].value_s):
            best = name, found
    if best is None:
        raise refused or Infeasible(f"{workload.name}: no placer found a placement")
    return BestStart(*best, tuple(left_out))
