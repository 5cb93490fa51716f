"""Which plans are predicted and measured."""

from __future__ import annotations

from benchmarks.truth import ALONE, STRATEGIES, Case, cases

from edgepart.planner.strategies.registry import PLACERS, strategies


def test_own_search_divisions_and_a_placer_are_measured() -> None:
    assert set(STRATEGIES) <= set(strategies())
    assert {"auto", "optcnn"} <= set(STRATEGIES) and set(PLACERS) & set(STRATEGIES)


def test_on_one_device_strategies_are_all_the_same() -> None:
    found = list(cases(["m"], [1, 2], STRATEGIES))
    assert found == [Case("m", 1, ALONE), *(Case("m", 2, name) for name in STRATEGIES)]
