"""Every strategy gives the answer of one session, keeps to memory and never loses to the best single device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.models import light, sample_inputs

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.errors import Infeasible, UsageError
from edgepart.planner.layout.strategy import Problem, Sync
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import best_strategy, choose_plan, compare
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.auto import budget, teams
from edgepart.planner.strategies.registry import MODULES, strategies
from tests.planner.placing.untrained import untrained
from tests.planner.small_models import quantised, residual

FAST_LINK = Link(bytes_per_s=1.17e8, latency_s=1e-4)


def cluster(*flops_per_s: float, link: Link = FAST_LINK, memory_bytes: float = 4e9) -> Cluster:
    devices = (Device(f"d{n}", "k", f, f / 4, memory_bytes) for n, f in enumerate(flops_per_s))
    return Cluster(tuple(devices), {}, link)


UNEQUAL = cluster(1.2e9, 0.9e9, 0.5e9)
FORCED = [("bbgrap", axis) for axis in ("height", "width", "channel", "batch")]
WAYS = [*((name, None) for name in MODULES), *FORCED]


@pytest.fixture(scope="module")
def squeezenet() -> tuple[Path, Graph]:
    path = light("squeezenet")
    return path, load_graph(path)


def assert_same_answer(
    model: bytes | Path, graph: Graph, name: str, axis: str | None, among: Cluster
) -> None:
    problem = Problem(graph, among, "d0", axis=axis, search_budget_s=1.0, networks=untrained)
    made, _, _ = choose_plan(problem, name, "m")
    inputs = sample_inputs(graph, 3)
    whole, parts = run_alone(model, inputs), LocalRun(made, graph).run(inputs)
    assert set(parts) == set(whole)
    for output, value in whole.items():
        assert np.abs(parts[output] - value).max() <= 1e-4 * np.abs(value).max(), output


@pytest.mark.parametrize(("name", "axis"), WAYS)
@pytest.mark.parametrize("model", [residual(), quantised()], ids=["residual", "quantised"])
def test_small_models_give_the_same_answer(model: bytes, name: str, axis: str | None) -> None:
    slow = cluster(3e6, 2e6, 1e6)  # So slow that splitting pays even for a toy.
    assert_same_answer(model, load_graph(model), name, axis, slow)


@pytest.mark.parametrize(("name", "axis"), WAYS)
def test_squeezenet_gives_the_same_answer(
    squeezenet: tuple[Path, Graph], name: str, axis: str | None
) -> None:
    path, graph = squeezenet
    assert_same_answer(path, graph, name, axis, UNEQUAL)


@pytest.mark.parametrize(
    "among",
    [cluster(1e9, 1e9), UNEQUAL, cluster(1e9, 1e9, 1e9, link=Link(1e5, 5e-2)), cluster(1e8, 4e9)],
    ids=["two equal", "three unequal", "slow links", "one far faster"],
)
def test_auto_is_at_least_as_good_as_everything_else(squeezenet: tuple[Path, Graph], among: Cluster) -> None:
    results = {
        r.name: r
        for r in compare(Problem(squeezenet[1], among, "d0", search_budget_s=2.0, networks=untrained))
    }
    seconds = {name: r.simulation.latency_s for name, r in results.items() if r.simulation}
    assert set(seconds) == set(MODULES)
    assert seconds["auto"] <= seconds["single"]
    assert seconds["auto"] <= min(seconds.values()) * (1 + 1e-9)


def test_slow_links_leave_the_model_whole(squeezenet: tuple[Path, Graph]) -> None:
    far = cluster(1e9, 1e9, link=Link(1e4, 0.5))
    made, simulation, _ = choose_plan(Problem(squeezenet[1], far, "d0", search_budget_s=1.0))
    assert set(made.programs) == {"d0"} and set(simulation.compute_s) == {"d0"}
    assert "loses more to its links" in made.why


def test_equal_slow_devices_on_fast_links_almost_double() -> None:
    graph = load_graph(light("vgg19"))
    times = {
        n: choose_sketch(Problem(graph, cluster(*[1.2e10] * n), "d0", search_budget_s=1.0)) for n in (1, 2, 4)
    }
    assert times[1] / times[2] > 1.8
    assert times[1] / times[4] > 3.3


def test_no_segment_is_handed_dequantised_values() -> None:
    graph = load_graph(quantised())
    made, _, _ = choose_plan(Problem(graph, cluster(3e6, 2e6, 1e6), "d0", axis="height"), "bbgrap", "m")
    ports = {p.piece.tensor for one in made.programs.values() for s in one.segments for p in s.inputs}
    assert len(made.programs) == 3
    assert {graph.tensors[name].dtype for name in ports - set(graph.inputs)} == {"uint8"}


def choose_sketch(problem: Problem) -> float:
    study = Study(problem)
    return study.scorer.forecast(best_strategy(problem, "auto", study)).latency_s


def test_a_plan_predicts_what_its_sketch_did(squeezenet: tuple[Path, Graph]) -> None:
    problem = Problem(squeezenet[1], UNEQUAL, "d0")
    study = Study(problem)
    made, simulation, strategy = choose_plan(problem, "bbgrap", study=study)
    assert simulation.latency_s == pytest.approx(study.scorer.forecast(strategy).latency_s)
    assert made.predicted_latency_s == simulation.latency_s


def test_the_optimiser_takes_away_most_of_what_bbgrap_broadcasts(squeezenet: tuple[Path, Graph]) -> None:
    problem = Problem(squeezenet[1], UNEQUAL, "d0", axis="height")
    strategy = best_strategy(problem, "bbgrap")
    assert strategy.sync is Sync.BROADCAST
    before = make_plan(problem, strategy, model_digest="", optimised=False, sketch=True)
    after = make_plan(problem, strategy, model_digest="", sketch=True)
    assert sum(t.nbytes for t in after.transfers) < 0.5 * sum(t.nbytes for t in before.transfers)


def test_memory_is_a_hard_limit_and_several_devices_can_be_enough() -> None:
    graph = load_graph(residual(rows=96, channels=16))
    weights = sum(constant.nbytes for constant in graph.constants.values())
    each = cluster(1e9, 1e9, 1e9, memory_bytes=0.75 * weights)
    with pytest.raises(Infeasible, match="lacks") as caught:
        choose_plan(Problem(graph, each, "d0"), "single")
    assert sum(caught.value.short_bytes.values()) > 0
    made, simulation, _ = choose_plan(Problem(graph, each, "d0"), "auto")
    assert len(made.programs) > 1
    assert max(simulation.peak_memory_bytes.values()) <= 0.75 * weights
    limited = Problem(graph, cluster(1e9, 1e9), "d0", memory_limit_bytes={"d0": 1000.0, "d1": 1000.0})
    with pytest.raises(Infeasible) as caught:
        choose_plan(limited, "auto")
    assert set(caught.value.short_bytes) <= {"d0", "d1"}


def test_what_cannot_be_split_as_asked_is_said(squeezenet: tuple[Path, Graph]) -> None:
    made, _, _ = choose_plan(Problem(squeezenet[1], UNEQUAL, "d0", axis="batch"), "bbgrap")
    assert "No layer can be split along batch" in made.why and len(made.programs) == 1


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        ({"axis": "diagonal"}, "bbgrap", "diagonal.*height"),
        ({"axis": "diagonal"}, "auto", "diagonal.*height"),
        ({"objective": "beauty"}, "auto", "beauty.*throughput"),
        ({"gateway": "nobody"}, "auto", "nobody"),
        ({}, "magic", "magic.*bbgrap"),
    ],
)
def test_wrong_wishes_are_refused(
    squeezenet: tuple[Path, Graph], change: dict[str, str], name: str, message: str
) -> None:
    problem = replace(Problem(squeezenet[1], UNEQUAL, "d0"), **change)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        choose_plan(problem, name)


def test_throughput_is_an_objective_of_its_own(squeezenet: tuple[Path, Graph]) -> None:
    among, graph = cluster(1e9, 1e9, link=Link(2e7, 1e-2)), squeezenet[1]
    found = {
        objective: choose_plan(Problem(graph, among, "d0", objective, search_budget_s=2.0))[0]
        for objective in ("latency", "throughput")
    }
    assert found["throughput"].predicted_throughput_per_s > found["latency"].predicted_throughput_per_s
    assert found["latency"].predicted_latency_s <= found["throughput"].predicted_latency_s


def test_the_search_stays_within_bounds_on_many_devices(squeezenet: tuple[Path, Graph]) -> None:
    study = Study(Problem(squeezenet[1], cluster(*[1e9] * 40), "d0", search_budget_s=1.0))
    assert budget(study.memo) < 40
    groups = list(teams(study.memo))
    assert len(groups) < 20 and len(set(groups)) == len(groups) and len(groups[0]) == 40


def test_strategies_are_found_by_name() -> None:
    assert tuple(strategies()) == MODULES
