"""Heirs: after a loss, the device that mirrors the lost one takes its place, as it has the states. Rules only.

By any other plan some of the states go from device to device before a text goes on, and that takes longer than the loss
itself. So a plan for a loss is the one that serves with the heir in it, if that is about as fast as the best one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.plans.plan import Plan
from edgepart.planner.search.checkpoint import SavedStrategy
from edgepart.planner.search.moves import hand_over
from edgepart.planner.search.study import Study

LITTLE_SLOWER = 1.05
"""How many times as long as the best plan one may take that has the states already. With more, what follows a loss is
slower until a better plan serves; with less, texts pause more often while states travel."""

WHY = "{heir} takes the place of {lost}, whose states it has"


def with_heir(study: Study, serving: Plan, chosen: SavedStrategy) -> Strategy | None:
    """`chosen`, from which the serving plan was made, with the mirror of the device that the study's cluster lacks in that
    device's place; None if more than one is missing, or it has no mirror that is there."""
    there = {device.name for device in study.memo.cluster.devices}
    lost = [name for name in serving.programs if name not in there]
    heir = serving.mirrors.get(lost[0]) if len(lost) == 1 else None
    if heir is None:
        return None
    hub = heir if chosen.hub == lost[0] else chosen.hub
    made = replace(chosen, choices=hand_over(chosen.choices, lost[0], heir), hub=hub)
    if not made.fits(study.memo):
        return None
    return made.remake(study.candidates, made.choices, WHY.format(heir=heir, lost=lost[0]))


def alone_with_states(study: Study, serving: Plan) -> Strategy | None:
    """All of the model on the device of the study's cluster that has most of the states; None if none has any."""
    there = {device.name for device in study.memo.cluster.devices}
    held = _states_by_holder(serving)
    holders = [name for name in held if name in there]
    if not holders:
        return None
    heir = max(sorted(holders), key=lambda name: held[name])
    why = f"{heir} has {'all' if held[heir] == _total_bytes(serving) else 'most'} of the states"
    return study.candidates.make("single", study.candidates.keep_whole(heir), why)


def _states_by_holder(plan: Plan) -> Mapping[str, int]:
    """The bytes of a sequence's states on each device of a plan: its own, and those that it mirrors."""
    found: dict[str, int] = {}
    for name, program in plan.programs.items():
        for holder in {name, plan.mirrors.get(name, name)}:
            found[holder] = found.get(holder, 0) + program.sequence_bytes
    return {name: nbytes for name, nbytes in found.items() if nbytes}


def _total_bytes(plan: Plan) -> int:
    """The bytes of a sequence's states on all devices together."""
    return sum(program.sequence_bytes for program in plan.programs.values())


def take_if_about_as_fast(study: Study, rather: Strategy | None, best: Strategy) -> Strategy:
    """`rather`, if it fits in memory and takes little longer than the best strategy; else the best one."""
    if rather is None or study.scorer.short_bytes(rather):
        return best
    fine = study.scorer.score(rather) <= LITTLE_SLOWER * study.scorer.score(best)
    return rather if fine else best
