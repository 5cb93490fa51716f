"""Refines a plan that serves with what was measured since: parts of every division move from devices that are busy for
long to those that are not. Rules only.

The study's cluster has what was measured: a device that takes longer than it was calibrated to has drifted."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.checkpoint import SavedStrategy
from edgepart.planner.search.moves import rescale
from edgepart.planner.search.scorer import Scorer
from edgepart.planner.search.study import Study

ROUNDS = 6
"""Times that parts are moved, at most."""

STEPS = (1.0, 0.5, 0.25)
"""How far: 1 is as far as would make all devices equally busy, if that were all."""

MOST = 4.0
"""A part grows to so many times what it was at most, in one round."""

WHY = "parts are fitted to what was measured"


def refine(study: Study, present: SavedStrategy) -> Iterator[Strategy]:
    """The strategy `present` as it is, then with parts moved as long as that helps; nothing where it was chosen for another
    model or other devices."""
    if not present.fits(study.memo):
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


def _factors(scorer: Scorer, strategy: Strategy, step: float) -> dict[str, float]:
    """By device, the factor for its parts."""
    busy = scorer.forecast(strategy).compute_s
    mean = sum(busy.values()) / max(1, len(busy))
    return {
        name: (mean / max(seconds, mean / MOST)) ** step if mean else 1.0 for name, seconds in busy.items()
    }
