"""Places whole operators on devices with the placers of planner/placing: Moirai's exact placement, the list
schedulers that it is compared with, and others.

The placers judge a placement by a workload (planner/strategies/model_workload.py). Here it is simulated as any
other plan. If a device takes more memory than it has after all, the placer is asked again, and every machine
keeps as many bytes free as the worst device took beyond its count. So a placement that was refused is refused
by the next workload as well. If the placer finds nothing, it is asked with less than the upper bound on what
making sessions takes, as many small sessions take less than a large one. The last resort of all placers are
stages (fitting_stages.py). Devices take their operators in the order of the placement's schedule
(planner/lowering/by_order.py), or by levels if that is faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf

from edgepart.planner.cost.memory import session_bytes
from edgepart.planner.errors import Infeasible
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.problem.workload import Placement, Workload
from edgepart.planner.placing.registry import placer
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.fitting_stages import fit_in_stages
from edgepart.planner.strategies.model_workload import build_fused_workload
from edgepart.planner.strategies.registry import PLACERS, register

ATTEMPTS = 6
"""The attempts at a placement that fits. Each has half of the time that is left."""

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
    clock = problem.clock or Looks()
    until_s = clock() + budget_s
    making, spare_bytes = 1.0, 0.0
    refused: Infeasible | None = None
    found_any = False
    for _ in range(ATTEMPTS):
        workload = found.charge(making, spare_bytes)
        left_s = max(0.0, until_s - clock())
        asked = Asked(clock, problem.objective, left_s / 2, networks=problem.networks)
        try:
            answer = placer(name)(workload, asked)
        except Infeasible as error:
            refused = refused or error
            making /= 2
            continue
        why = f"each operator is whole on one device: {answer.why}"
        strategy = study.candidates.make(name, found.choices(answer.placement), why)
        yield strategy
        found_any = True
        schedule = answer.schedule or dispatch(workload, answer.placement)
        ordered = replace(strategy, order=found.order(schedule.start_s))
        yield ordered
        if not study.scorer.short_bytes(ordered):
            return
        spare_bytes = max(spare_bytes, _uncounted_bytes(study, ordered, workload, answer.placement))
    if refused and not found_any:
        raise refused


def _uncounted_bytes(study: Study, strategy: Strategy, workload: Workload, placement: Placement) -> float:
    """The most bytes by which a device's peak exceeds what the workload counts for it."""
    peaks = study.scorer.forecast(strategy).peak_memory_bytes
    counted = zip(workload.machines, workload.memory_bytes(placement), strict=True)
    here = study.memo.cluster.device
    return max(
        peaks.get(machine.name, 0) - session_bytes(here(machine.name).threads) - kept
        for machine, kept in counted
    )


def place_on_free_links(name: str, study: Study) -> Strategy:
    """The strategy that the placer `name` finds if links take no time: it shares the work of a stretch well
    if all devices have the stretch's inputs. Raises Infeasible or NotInstalled as `placements` does."""
    problem, found = study.memo.problem, study.memo.once(build_fused_workload)
    still = tuple((0.0,) * len(row) for row in found.workload.latency_s)
    wide = tuple((inf,) * len(row) for row in found.workload.bytes_per_s)
    workload = replace(found.workload, latency_s=still, bytes_per_s=wide, media=()).like(found.workload)
    asked = Asked(
        problem.clock or Looks(), problem.objective, problem.search_budget_s, networks=problem.networks
    )
    answer = placer(name)(workload, asked)
    made = study.candidates.make(
        name, found.choices(answer.placement), "each operator is whole on one device"
    )
    schedule = answer.schedule or dispatch(workload, answer.placement)
    return replace(made, order=found.order(schedule.start_s))


def _candidates(name: str, study: Study) -> Iterator[Strategy]:
    """The candidates of the placer, with all of the budget; stages if none of them fits."""
    fitted = False
    with suppress(Infeasible):  # Stages may still fit, and the best of all candidates says what is short.
        for strategy in placements(name, study, study.memo.problem.search_budget_s):
            yield strategy
            fitted = fitted or not study.scorer.short_bytes(strategy)
    if not fitted:
        because = f"{name} found no placement that fits, so that layers are in stages instead: "
        yield from fit_in_stages(study, name, because)


for _name in PLACERS:
    register(_name)(partial(_candidates, _name))
