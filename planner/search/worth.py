"""Worth: whether what was changed in a strategy pays. Rules."""

from __future__ import annotations

from dataclasses import replace

from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.study import Study

WORTH = 0.995
"""Of the latency, at most, for a plan with more steps: they take more memory, and predictions are no more exact."""


def bettered(study: Study, strategy: Strategy, changed: Strategy, why: str) -> Strategy | None:
    """`changed`, with `why` in its reasons, where it is better than `strategy` and fits; else None."""
    told = strategy.why if why in strategy.why else f"{strategy.why}; {why}"
    found = replace(changed, why=told)
    if study.score(found) >= WORTH * study.score(strategy) or study.short_bytes(found):
        return None
    return found
