"""Places whole operators on devices with the placers of planner/placing: Moirai's exact placement, the list
schedulers that it is compared with, and others.

The placers judge a placement by a workload (planner/strategies/model_workload.py). Here it is simulated as
any other plan; if it does not fit into memory after all, the placer is asked again with that much less
memory. Devices take their operators in the order of the placement's schedule (planner/lowering/by_order.py),
or by levels if that is faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import inf

from edgepart.planner.errors import Infeasible
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.registry import placer
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.model_workload import build_fused_workload
from edgepart.planner.strategies.registry import PLACERS, register

ATTEMPTS = 4
"""The attempts at a placement that fits, each with less memory to place in. The first has half of the budget, the next
one half of the rest."""

LOOK_S = 0.001
"""The seconds that a look at the clock counts for if the problem has no clock."""


class Looks:
    """A clock that advances only when it is read, so that the same search always ends at the same place."""

    def __init__(self) -> None:
        self._looks = 0

    def __call__(self) -> float:
        self._looks += 1
        return LOOK_S * self._looks


def placements(name: str, study: Study, budget_s: float) -> Iterator[Strategy]:
    """Yield what the placer `name` finds, by levels and in the order of its schedule. Raises Infeasible if it
    finds nothing, and NotInstalled if it needs an extra that is not installed."""
    problem, found = study.memo.problem, study.memo.once(build_fused_workload)
    for _ in range(ATTEMPTS):
        budget_s /= 2
        asked = Asked(problem.clock or Looks(), problem.objective, budget_s)
        answer = placer(name)(found.workload, asked)
        why = f"each operator is whole on one device: {answer.why}"
        strategy = study.candidates.make(name, found.choices(answer.placement), why)
        yield strategy
        schedule = answer.schedule or dispatch(found.workload, answer.placement)
        ordered = replace(strategy, order=found.order(schedule.start_s))
        yield ordered
        short = study.scorer.short_bytes(ordered)
        if not short:
            return
        found = found.tighten(answer.placement, short)


def place_on_free_links(name: str, study: Study) -> Strategy:
    """The strategy that the placer `name` finds if links take no time: it shares the work of a stretch well
    if all devices have the stretch's inputs. Raises Infeasible or NotInstalled as `placements` does."""
    problem, found = study.memo.problem, study.memo.once(build_fused_workload)
    still = tuple((0.0,) * len(row) for row in found.workload.latency_s)
    wide = tuple((inf,) * len(row) for row in found.workload.bytes_per_s)
    workload = replace(found.workload, latency_s=still, bytes_per_s=wide)
    asked = Asked(problem.clock or Looks(), problem.objective, problem.search_budget_s)
    answer = placer(name)(workload, asked)
    made = study.candidates.make(
        name, found.choices(answer.placement), "each operator is whole on one device"
    )
    schedule = answer.schedule or dispatch(workload, answer.placement)
    return replace(made, order=found.order(schedule.start_s))


def _candidates(name: str, study: Study) -> Iterator[Strategy]:
    """The candidates of the placer, with all of the budget."""
    try:
        yield from placements(name, study, study.memo.problem.search_budget_s)
    except Infeasible as error:
        raise study.scorer.explain_infeasible(error.short_bytes) from error


for _name in PLACERS:
    register(_name)(partial(_candidates, _name))
