"""Refines a plan that is in use with measurements since then: parts of every division move from busy devices
to idle ones. Rules only.

The study's cluster has the measured speeds: a device that takes longer than its calibration says has
drifted."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.checkpoint import SavedStrategy
from edgepart.planner.search.moves import devices_of, rescale
from edgepart.planner.search.scorer import Scorer
from edgepart.planner.search.study import Study
from edgepart.planner.vocabulary import ON_ALL_DEVICES

ROUNDS = 6
"""The most rounds in which parts are moved."""

STEPS = (1.0, 0.5, 0.25)
"""The step sizes that are tried: step 1 would make all devices equally busy if computing were all that counts."""

MOST = 4.0
"""The most by which a part grows in one round, as a factor."""

WHY = "parts are fitted to what was measured"


def refine(study: Study, present: SavedStrategy) -> Iterator[Strategy]:
    """Yields the strategy `present` unchanged, then with parts moved as long as that helps. Yields nothing if
    `present` was chosen for another model or other devices, or leaves out a device that its strategy has to use."""
    if not present.fits(study.memo) or _leaves_out_a_device(study, present):
        return
    best, choices = present.remake(study.candidates, present.choices), present.choices
    yield best
    for _ in range(ROUNDS):
        for step in STEPS:
            moved = rescale(choices, _factors(study.scorer, best, step))
            if moved == choices:
                return
            candidate = present.remake(study.candidates, moved, WHY)
            yield candidate
            if not study.scorer.short_bytes(candidate) and study.scorer.is_better(
                candidate, study.scorer.score(best)
            ):
                best, choices = candidate, moved
                break
        else:
            return


def _leaves_out_a_device(study: Study, present: SavedStrategy) -> bool:
    """Whether `present` is a division over all devices, and there is one now that has no part in it: one that joined. Such
    a strategy is what the user asked for, so it may not go on without that device because it was faster that way."""
    there = {device.name for device in study.memo.cluster.devices}
    return present.name in ON_ALL_DEVICES and not there.issubset(devices_of(present.choices))


def _factors(scorer: Scorer, strategy: Strategy, step: float) -> dict[str, float]:
    """The factor by which each device's parts change."""
    busy = scorer.forecast(strategy).compute_s
    mean = sum(busy.values()) / max(1, len(busy))
    return {
        name: (mean / max(seconds, mean / MOST)) ** step if mean else 1.0 for name, seconds in busy.items()
    }
