"""Learned: no worse than list scheduling, whatever the network says; better if it knows more; and it says what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from edgepart.planner.errors import Infeasible, NotInstalled
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.engine import judge
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.judge import prepare
from edgepart.planner.placing.guided.decode import PLAIN
from edgepart.planner.placing.placers import learned as module
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.placers.learned import place_by_network
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.networks import NetworkCard, NeuralNetwork
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Placement, Workload
from tests.planner.placing.asking import asked, every_placement
from tests.planner.placing.problem.test_task_graph import without_last
from tests.planner.placing.workloads import workload, workloads

CARD = NetworkCard("learned", 0, (), 0, "", "2026-01-01", "by hand")


def guided(says: str, objective: str = "latency", budget_s: float = 1e3, bias: Any = None) -> Asked:
    """Asked with a network that says nothing, nonsense, or the bias."""

    def run(inputs: Mapping[str, NDArray[Any]]) -> Sequence[NDArray[Any]]:
        tasks, machines = inputs["pairs"].shape[:2]
        random = np.random.default_rng(5)
        of = {
            "nothing": np.zeros((tasks, machines)),
            "nonsense": 9 * random.normal(size=(tasks, machines)),
            "bias": bias,
        }
        return of[says].astype(np.float32), np.tile(PLAIN, (tasks, 1)).astype(np.float32)

    return replace(asked(objective, budget_s), networks=lambda name: NeuralNetwork(CARD, run))


@settings(max_examples=25)
@given(workloads(6, 3, memory=True, partial=True, groups=True))
def test_whatever_the_network_says_the_answer_is_sound(graph: Workload) -> None:
    for objective in ("latency", "throughput"):
        try:
            check(graph, place_by_network(graph, guided("nonsense", objective, 30)), objective)
        except Infeasible:
            assert not list(every_placement(graph))


def test_it_is_no_worse_than_one_machine_or_list_scheduling() -> None:
    for family in ("cells", "unet"):
        graph = draw_workload(family, Random(5), 60, 3)
        found = place_by_network(graph, guided("nonsense", budget_s=0))
        assert found.value_s <= place_by_network(graph, guided("nothing", budget_s=0)).value_s
        assert check(graph, found).value_s <= min(sum(t.compute_s[m] for t in graph.tasks) for m in range(3))


def test_it_is_no_worse_than_heft_if_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ascend", lambda graph, start, *_: start)
    monkeypatch.setattr(module, "SAMPLES", 1)
    monkeypatch.setattr(module, "FEW_SAMPLES", 1)
    whose = set()
    for seed in range(8):
        graph = draw_workload("cells", Random(seed), 60, 3)
        heft = find(graph, "heft", asked())
        found = place_by_network(graph, guided("nonsense"))
        assert found.value_s <= heft.value_s
        whose.add(found.why.partition(",")[0])
        if found.why.startswith("heft's"):
            assert found.placement == heft.placement and ", better than " in found.why
    assert "heft's" in whose

    def refuse(*_: object, **__: object) -> None:
        raise Infeasible("no room")

    monkeypatch.setattr(module, "find_best_start", refuse)
    check(graph, place_by_network(graph, guided("nonsense")))
    monkeypatch.delattr(module, "find_best_start")
    check(graph, place_by_network(graph, guided("nonsense", budget_s=0)))  # HEFT is not asked.


def test_a_network_that_knows_more_is_followed() -> None:
    # The first task is done first on the first machine, from where its bytes take long to where the rest is quick.
    graph = workload([(1.0, 1.1), (50.0, 1.0)], [(0, (1,), 2000.0)])
    bias = np.array([[0.0, 1e6], [0.0, 1e6]])
    told = place_by_network(graph, guided("bias", budget_s=0, bias=bias))
    assert told.placement == (1, 1) and told.value_s == pytest.approx(2.1)


def test_without_compiled_decoding_it_says_that_samples_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = draw_workload("cells", Random(5), 40, 3)
    monkeypatch.setattr(module, "is_prepared", lambda: False)
    assert "few as decoding is not compiled" in place_by_network(graph, guided("nothing", budget_s=1)).why
    monkeypatch.setattr(module, "is_prepared", lambda: True)
    assert "not compiled" not in place_by_network(graph, guided("nothing", budget_s=1)).why.split(",")[0]


@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_known_of_the_graph_changes_no_answer(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        pytest.importorskip("numba", reason="of the extra [climb]")
        assert prepare()
    else:
        monkeypatch.setattr(judge._Prepared, "code", None)
    for family in ("cells", "experts"):
        whole = draw_workload(family, Random(2), 50, 4)
        place_by_network(whole, guided("nonsense", budget_s=0))
        known = without_last(whole).like(whole)
        assert known.graph is whole.graph
        again = place_by_network(known, guided("nonsense", budget_s=0))
        assert again == place_by_network(without_last(whole), guided("nonsense", budget_s=0))
        check(known, again)


def test_without_time_and_compiled_code_it_works_out_one_schedule_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = draw_workload("cells", Random(5), 40, 3)
    monkeypatch.setattr(judge._Prepared, "code", None)
    settled: list[str] = []

    def counted(
        graph: Workload, placement: Placement, asked: Asked, why: str, **orders: Any
    ) -> PlacementFound:
        settled.append(why)
        return settle(graph, placement, asked, why, **orders)

    monkeypatch.setattr(module, "settle", counted)
    why = place_by_network(graph, guided("nothing", budget_s=0)).why
    assert len(settled) == 1 and "of which one was worked out as no time was left" in why
    assert "with no time left to climb" in why
    assert "worked out" not in place_by_network(graph, guided("nothing", budget_s=1e3)).why
    assert len(settled) == 3


def test_a_large_graph_is_contracted_for_the_network_if_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = draw_workload("experts", Random(1), 120, 3)
    monkeypatch.setattr(module, "LARGE", 60)
    monkeypatch.setattr(module, "GROUPS", 30)
    for objective in ("latency", "throughput"):
        check(graph, place_by_network(graph, guided("nothing", objective, 100)), objective)
    assert "no time to contract" in place_by_network(graph, guided("nothing", budget_s=0)).why


def test_without_a_network_it_refuses_and_says_why() -> None:
    graph = workload([(1.0,)], [])
    with pytest.raises(NotInstalled, match="learned needs a trained network"):
        place_by_network(graph, asked())
