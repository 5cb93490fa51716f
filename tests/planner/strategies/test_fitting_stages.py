"""Stages that fit: found where there are any, counted as plans count, and a last resort that says what it is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from pathlib import Path

import pytest
from benchmarks.models import light
from benchmarks.models.builder import Builder
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layout.choices import Whole
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.stateful import load_with_states
from edgepart.planner.planner import best_strategy
from edgepart.planner.search.stage_memory import StageMemory
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.fitting_stages import emptiest_stages, fit_in_stages
from tests.processes.tiny_language import tiny_language

LINK = Link(bytes_per_s=1.17e8, latency_s=1e-4)


def cluster(*speeds: float, memory_bytes: float = 4e9) -> Cluster:
    devices = (Device(f"d{n}", "k", 1e9 * s, 1e9 * s, memory_bytes) for n, s in enumerate(speeds))
    return Cluster(tuple(devices), {}, LINK)


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """Convolutions and dense layers one after another."""
    b = Builder("chain")
    wide = draw(st.integers(8, 64))
    x = b.input("x", (1, wide, 6, 6))
    for _ in range(draw(st.integers(1, 3))):
        out = draw(st.integers(8, 96))
        x, wide = b.add("Relu", b.conv(x, wide, out, (3, 3))), out
    x, wide = b.add("Flatten", x), 36 * wide
    for _ in range(draw(st.integers(1, 2))):
        out = draw(st.integers(8, 64))
        x, wide = b.add("Relu", b.linear(x, wide, out)), out
    b.output(x, "y")
    return load_graph(b.model().SerializeToString())


def every_division(study: Study) -> Iterator[tuple[list[int], tuple[str, ...], Strategy]]:
    """The places between stages, the devices and the strategy of each way to put the layers in stages."""
    layers = sorted(study.memo.layers, key=lambda layer: study.memo.last_position[layer.number])
    for count in range(1, 1 + min(len(layers), len(study.memo.by_speed))):
        for inner in combinations(range(1, len(layers)), count - 1):
            places = [0, *inner, len(layers)]
            for devices in permutations(study.memo.by_speed, count):
                choices = {
                    layer.number: Whole((device,))
                    for device, begin, end in zip(devices, places, places[1:], strict=False)
                    for layer in layers[begin:end]
                }
                yield places, devices, study.candidates.make("any", choices, "")


def least_limit(graph: Graph) -> float:
    """The least memory of each of three equal devices with which the layers fit in stages, by forecasts."""
    study = Study(Problem(graph, cluster(1, 1, 1), "d0"))
    return min(
        max(study.scorer.forecast(strategy).peak_memory_bytes.values())
        for _, _, strategy in every_division(study)
    )


@settings(max_examples=25, deadline=None)
@given(
    chains(),
    st.sampled_from([(1.0, 1.0, 1.0), (1.0, 4.0, 30.0), (9.0, 1.0, 0.1)]),
    st.sampled_from(["pipeline", "heft", "expert", "metis", "optcnn"]),
    st.sampled_from(["latency", "throughput"]),
)
def test_a_chain_that_fits_in_stages_is_never_refused(
    graph: Graph, speeds: tuple[float, ...], name: str, objective: str
) -> None:
    problem = Problem(graph, cluster(*speeds, memory_bytes=least_limit(graph)), "d0", objective)
    study = Study(problem)
    assert not study.scorer.short_bytes(best_strategy(problem, name, study))


@settings(max_examples=25, deadline=None)
@given(chains())
def test_stages_of_a_chain_are_counted_as_plans_count_them(graph: Graph) -> None:
    study = Study(Problem(graph, cluster(1, 1, 1), "d0"))
    layers = sorted(study.memo.layers, key=lambda layer: study.memo.last_position[layer.number])
    memory = StageMemory(study.memo, [(layer,) for layer in layers], study.memo.by_speed)
    for places, devices, strategy in every_division(study):
        peaks = study.scorer.forecast(strategy).peak_memory_bytes
        for device, begin, end in zip(devices, places, places[1:], strict=False):
            counted = memory.nbytes(study.memo.by_speed.index(device))[begin, end]
            assert peaks[device] <= counted <= 1.05 * peaks[device]


def test_what_a_plan_shows_of_a_stage_holds_for_stages_around_and_inside_it_and_for_devices_alike() -> None:
    study = Study(Problem(load_graph(light("squeezenet")), cluster(1, 1, 2), "d0"))
    layers = sorted(study.memo.layers, key=lambda layer: study.memo.last_position[layer.number])
    memory = StageMemory(study.memo, [(layer,) for layer in layers], ["d0", "d1"])
    before = memory.nbytes(0).copy()
    assert memory.learn(0, 3, 9, 5e6) and not memory.learn(1, 3, 9, 5e6)
    after = memory.nbytes(1)
    assert after[3, 9] == 5e6 and after[2, 9] >= 5e6 and after[3, 10] >= 5e6
    assert after[4, 9] <= 5e6 and after[3, 8] <= 5e6
    assert (after[:3, :9] == before[:3, :9]).all() and (after[4:, 10:] == before[4:, 10:]).all()


@pytest.mark.parametrize("speeds", [(1, 1), (1, 3), (3, 1), (1, 30), (30, 1)])
def test_states_of_sequences_keep_layers_apart_however_unequal_the_speeds(
    tmp_path: Path, speeds: tuple[float, float]
) -> None:
    """The balance would give the faster device both layers, whose weights have room and whose states have not."""
    folder = tiny_language(tmp_path / "tiny")
    graph = load_with_states((folder / "model.onnx").read_bytes(), {}, context=1024)[0]
    among = cluster(*speeds, memory_bytes=2400 << 10)
    problem = Problem(graph, among, "d0", "throughput", sequences=4)
    study = Study(problem)
    strategy = best_strategy(problem, "pipeline", study)
    assert not study.scorer.short_bytes(strategy)
    assert len(study.scorer.forecast(strategy).compute_s) == 2


@pytest.mark.parametrize("limit", [120e6, 110e6, 90e6, 70e6])
@pytest.mark.parametrize("name", ["heft", "m-etf", "expert", "metis", "pipeline", "optcnn"])
def test_a_resnet50_fits_on_four_small_devices(resnet50: Study, name: str, limit: float) -> None:
    study = resnet50.on(Problem(resnet50.memo.graph, cluster(20, 20, 20, 20, memory_bytes=limit), "d0"))
    strategy = best_strategy(study.memo.problem, name, study)
    assert strategy.name == name and not study.scorer.short_bytes(strategy)


@pytest.mark.parametrize("limit", [110e6, 90e6])
@pytest.mark.parametrize("name", ["m-sct", pytest.param("moirai", marks=pytest.mark.nightly)])
def test_placers_that_solve_programs_fit_a_resnet50_too(resnet50: Study, name: str, limit: float) -> None:
    pytest.importorskip("ortools", reason="needs OR-tools, of the extra [exact]")
    among = cluster(20, 20, 20, 20, memory_bytes=limit)
    study = resnet50.on(Problem(resnet50.memo.graph, among, "d0", search_budget_s=1.0))
    strategy = best_strategy(study.memo.problem, name, study)
    assert strategy.name == name and not study.scorer.short_bytes(strategy)


@pytest.fixture(scope="module")
def resnet50() -> Study:
    return Study(Problem(load_graph(light("resnet50")), cluster(20, 20, 20, 20), "d0"))


def test_the_last_resort_says_what_it_is_and_stops_when_nothing_fits(resnet50: Study) -> None:
    tight = resnet50.on(Problem(resnet50.memo.graph, cluster(20, 20, memory_bytes=140e6), "d0"))
    found = list(fit_in_stages(tight, "heft", "nothing else: "))
    assert any(not tight.scorer.short_bytes(strategy) for strategy in found)
    assert all(one.name == "heft" and one.why.startswith("nothing else: ") for one in found)
    starved = resnet50.on(Problem(resnet50.memo.graph, cluster(20, 20, memory_bytes=1e6), "d0"))
    assert all(starved.scorer.short_bytes(one) for one in emptiest_stages(starved, "heft"))
