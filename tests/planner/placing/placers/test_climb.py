"""Climbing from the best quick placer: no worse than any, within its budget, and it says what it did."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from edgepart.planner.errors import Infeasible
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.placers import climb as module
from edgepart.planner.placing.placers.climb import STARTS, climb_from_best
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import placer
from tests.planner.placing.asking import asked, every_placement, found_by
from tests.planner.placing.workloads import workload, workloads


@settings(max_examples=30)
@given(workloads(6, 3, memory=True, partial=True, groups=True, media=True))
def test_it_is_no_worse_than_where_it_starts_and_infeasible_is_true(graph: Workload) -> None:
    for objective in ("latency", "throughput"):
        try:
            found = check(graph, climb_from_best(graph, asked(objective, 30)), objective)
        except Infeasible:
            assert not list(every_placement(graph))
            continue
        for name in STARTS[:2]:
            assert found.value_s <= placer(name)(graph, asked(objective, 30)).value_s


def test_it_finds_more_than_the_quick_placers_and_is_the_same_again() -> None:
    graph = draw_workload("cells", Random(5), 60, 3)
    found = check(graph, climb_from_best(graph, asked(budget_s=60)))
    assert found.value_s < min(placer(name)(graph, asked()).value_s for name in STARTS)
    assert found == climb_from_best(graph, asked(budget_s=60)) and "placements tried" in found.why


def test_a_start_that_is_given_takes_the_place_of_others() -> None:
    pair = workload([(2.0, 1.0), (2.0, 1.0)], [])
    found = climb_from_best(pair, replace(asked(budget_s=1), start=found_by("expert", pair)))
    assert "from a start of 2 s" in found.why and found.value_s <= 2.0


def test_a_large_graph_is_contracted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = draw_workload("experts", Random(1), 120, 3)
    monkeypatch.setattr(module, "LARGE", 60)
    monkeypatch.setattr(module, "GROUPS", 30)
    for objective in ("latency", "throughput"):
        found = check(graph, climb_from_best(graph, asked(objective, 60)), objective)
        assert found.value_s <= placer("heft")(graph, asked(objective)).value_s
        assert "no time to contract" in climb_from_best(graph, asked(objective, budget_s=0)).why
