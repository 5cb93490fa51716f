"""The placer that a network of GDP guides: the best of what it finds likely, made to fit, and the same each time."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from edgepart.planner.errors import Infeasible, NotInstalled
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.placers.gdp import DRAWN, gdp
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.networks import NetworkCard, NeuralNetwork
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.workloads import roomy, workload, workloads

CARD = NetworkCard("gdp", 0, ("attention", "experts"), 0, "", "2026-01-01", "")


def asked(likely: int | None, strength: float, objective: str = "latency", budget_s: float = 10.0) -> Asked:
    """What a network is asked that prefers one column by so much, or, with None, each row another one."""

    def run(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        logits = (inputs["able"] - 1.0) * 1e9
        rows, columns = logits.shape
        for row in range(rows):
            logits[row, row % columns if likely is None else likely] += strength
        return [logits]

    return Asked(lambda: 0.0, objective, budget_s, networks={"gdp": NeuralNetwork(CARD, run)}.__getitem__)


@settings(max_examples=60, deadline=None)
@given(workloads(8, 4, memory=True, partial=True, groups=True))
def test_every_answer_is_sound(any_one: Workload) -> None:
    for objective in ("latency", "throughput"):
        try:
            found = gdp(any_one, asked(None, 1.0, objective))
        except Infeasible:
            continue
        check(any_one, found, objective)


def test_the_likeliest_placement_is_among_those_that_are_compared() -> None:
    graph = roomy(draw_workload("inception", Random(3), 60, 3))
    certain = gdp(graph, asked(1, 1e4))
    assert len(set(certain.placement)) == 1
    assert "the likeliest placement is the best" in certain.why and "attention, experts" in certain.why
    unsure = gdp(graph, asked(1, 1.0))
    assert unsure.value_s < certain.value_s and "a drawn placement is the best" in unsure.why
    assert f"of {DRAWN + 1}" in unsure.why


def test_the_answer_is_the_same_each_time_and_takes_the_time_that_it_has() -> None:
    graph = roomy(draw_workload("experts", Random(0), 60, 4))
    assert gdp(graph, asked(0, 2.0)) == gdp(graph, asked(0, 2.0))
    hasty = gdp(graph, asked(0, 2.0, budget_s=0.0))
    assert len(set(hasty.placement)) == 1 and "the best of 1 " in hasty.why


def test_what_is_found_is_told() -> None:
    graph = roomy(draw_workload("branches", Random(1), 40, 2))
    values: list[float] = []
    search = asked(0, 0.5)
    search = Asked(search.clock, networks=search.networks, tell=values.append)
    found = gdp(graph, search)
    assert found.value_s <= min(values) and found.value_s <= dispatch(graph, found.placement).makespan_s


def test_what_does_not_fit_is_made_to() -> None:
    tight = workload([(1.0, 4.0)] * 4, [], memory_bytes=(2.0, 2.0), task_bytes=(1.0,) * 4)
    found = gdp(tight, asked(0, 1e4))
    assert sorted(found.placement) == [0, 0, 1, 1]
    assert f"none of {DRAWN + 1} placements" in found.why and "moved" in found.why


def test_without_a_network_it_is_not_available() -> None:
    with pytest.raises(NotInstalled, match="without any"):
        gdp(draw_workload("branches", Random(1), 40, 2), Asked(lambda: 0.0))


def test_a_stream_is_judged_by_its_load() -> None:
    graph = workload([(1.0, 1.0)] * 4, [])
    found = gdp(graph, asked(None, 1e4, "throughput"))
    assert found.value_s == 2.0 and "trained for latency" in found.why
    assert np.bincount(found.placement).tolist() == [2, 2]
