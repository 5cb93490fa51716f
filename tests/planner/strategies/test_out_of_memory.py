"""Models that no device has the memory for: plans that fit are found, and what is said to be short is what would do."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.models import sample_inputs
from benchmarks.models.builder import Builder
from benchmarks.models.transformers import bert
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.cost.memory import ROW_BYTES, WIDENED, kept_bytes, whole_bytes
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.errors import Infeasible
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.search.study import Study
from edgepart.planner.strategies import out_of_memory
from edgepart.planner.strategies.out_of_memory import candidates, weights_of
from tests.nightly import nightly

LINK = Link(bytes_per_s=5e8, latency_s=2e-4)
SLOWER = (1.0, 0.97, 0.9)


def cluster(*memory_bytes: float, flops_per_s: tuple[float, ...] = ()) -> Cluster:
    speeds = flops_per_s or (1e10,) * len(memory_bytes)
    return Cluster(
        tuple(
            Device(f"d{n}", "k", f, f / 4, m)
            for n, (m, f) in enumerate(zip(memory_bytes, speeds, strict=True))
        ),
        {},
        LINK,
    )


def chain(layers: int = 10, width: int = 512) -> ModelProto:
    """Dense layers of a megabyte each."""
    b = Builder("chain")
    x = b.input("x", (1, width))
    for _ in range(layers):
        x = b.add("Relu", b.linear(x, width, width))
    b.output(x, "y")
    return b.model()


def one_large(width: int = 2048) -> ModelProto:
    """A layer that has nearly all of the weights, as in VGG, before one with few columns."""
    b = Builder("one_large")
    x = b.input("x", (1, 256))
    x = b.add("Relu", b.linear(x, 256, width))
    x = b.add("Relu", b.linear(x, width, width))
    b.output(b.linear(x, width, 10), "y")
    return b.model()


MODELS = {"chain": chain(), "one_large": one_large(), "bert": bert(4, 128, 4, 16, 4000)}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[bytes, Graph]:
    data = MODELS[request.param].SerializeToString()
    return data, load_graph(data)


def test_every_way_gives_the_same_answer_and_keeps_to_what_it_says(model: tuple[bytes, Graph]) -> None:
    data, graph = model
    study = Study(Problem(graph, cluster(6e6, 5e6, 4e6), "d0"))
    inputs = sample_inputs(graph, 1)
    whole, fitted = run_alone(data, inputs), 0
    ways = list(candidates(study))
    for strategy in ways[::2]:
        plan = make_plan(study.memo.problem, strategy, model_digest="m", cost=study.memo.cost)
        peaks = {name: program.peak_memory_bytes for name, program in plan.programs.items()}
        assert peaks == study.scorer.forecast(strategy).peak_memory_bytes
        fitted += not study.scorer.short_bytes(strategy)
        parts = LocalRun(plan, graph).run(inputs)
        for name, value in whole.items():
            assert np.abs(parts[name] - value).max() <= 1e-4 * np.abs(value).max(), strategy.why
    assert len(ways) > 3


def test_auto_fits_where_no_device_does(model: tuple[bytes, Graph]) -> None:
    _, graph = model
    total = weights_of(Study(Problem(graph, cluster(1e9), "d0")).memo).total
    among = cluster(*[0.7 * total + 1e6] * 3)
    with pytest.raises(Infeasible):
        choose_plan(Problem(graph, among, "d0", search_budget_s=0.5), "single")
    plan, simulation, _ = choose_plan(Problem(graph, among, "d0", search_budget_s=0.5), "auto")
    assert len(plan.programs) > 1
    for device in among.devices:
        assert simulation.peak_memory_bytes.get(device.name, 0) <= device.memory_bytes


def enough(error: Infeasible, among: Cluster) -> Cluster:
    """The cluster with the memory that the error asks for."""
    devices = (
        replace(d, memory_bytes=d.memory_bytes + error.short_bytes.get(d.name, 0)) for d in among.devices
    )
    return replace(among, devices=tuple(devices))


@pytest.mark.parametrize("sizes", [(3e6, 1e6), *nightly((1e5,), (2e6, 5e5, 1e6))])
def test_what_would_do_does(model: tuple[bytes, Graph], sizes: tuple[float, ...]) -> None:
    _, graph = model
    among = cluster(*sizes)
    problem = Problem(graph, among, "d0", search_budget_s=0.5)
    with pytest.raises(Infeasible) as caught:
        choose_plan(problem, "auto")
    said = {
        name: int(lack.replace(",", ""))
        for name, lack in re.findall(r"(d\d) lacks ([\d,]+)", str(caught.value))
    }
    assert said == caught.value.short_bytes
    made = enough(caught.value, among)
    for factors in ((1.0,) * len(sizes), SLOWER[: len(sizes)], SLOWER[: len(sizes)][::-1]):  # measured anew
        devices = (
            replace(device, flops_per_s=factor * device.flops_per_s)
            for device, factor in zip(made.devices, factors, strict=True)
        )
        plan, _, _ = choose_plan(replace(problem, cluster=replace(made, devices=tuple(devices))), "auto")
        for device in made.devices:
            if device.name in plan.programs:
                assert plan.programs[device.name].peak_memory_bytes <= device.memory_bytes


def test_the_least_is_near_what_it_must_be() -> None:
    """Ten equal layers on five equal devices: two for each."""
    graph = load_graph(MODELS["chain"].SerializeToString())
    with pytest.raises(Infeasible) as caught:
        choose_plan(Problem(graph, cluster(*[1.5e6] * 5), "d0", search_budget_s=0.5), "auto")
    each = 2 * (512 * 512 + 512) * 4
    most = max(1.5e6 + lack for lack in caught.value.short_bytes.values())
    assert each < most < each + 1.5e6  # a third layer's place is what making a session takes


def test_a_limit_for_a_deployment_counts_like_a_device() -> None:
    graph = load_graph(MODELS["chain"].SerializeToString())
    limits = {f"d{n}": 5e6 for n in range(3)}
    problem = Problem(graph, cluster(*[1e9] * 3), "d0", memory_limit_bytes=limits, search_budget_s=0.5)
    plan, simulation, _ = choose_plan(problem, "auto")
    assert len(plan.programs) == 3
    assert max(simulation.peak_memory_bytes.values()) <= 5e6


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.floats(0.5, 3.0))
def test_shares_by_speed_never_pass_the_room_that_there_is(rooms: list[int], speed: float) -> None:
    graph = load_graph(MODELS["chain"].SerializeToString())
    speeds = tuple(1e9 * speed**n for n in range(len(rooms)))
    study = Study(Problem(graph, cluster(*[1e9] * len(rooms), flops_per_s=speeds), "d0"))
    weights = weights_of(study.memo)
    room = {f"d{n}": 1e6 * size for n, size in enumerate(rooms)}
    shares = dict(out_of_memory._by_speed(study.memo, weights, room))
    parts = {name: weights.total * share / sum(shares.values()) for name, share in shares.items()}
    if sum(room.values()) > weights.total:
        assert all(part <= room[name] * (1 + 1e-9) for name, part in parts.items())
    assert sum(parts.values()) == pytest.approx(weights.total)


def test_tables_count_for_what_is_read_of_them_and_halves_for_what_they_become() -> None:
    graph = load_graph(MODELS["bert"].SerializeToString())
    words = next(op for op in graph.operators if op.op_type == "Gather")
    (table,) = (name for name in words.inputs if name in graph.constants)
    assert whole_bytes(graph, words) == {table: 16 * ROW_BYTES}
    assert graph.constants[table].nbytes == 4000 * 128 * 4 > 16 * ROW_BYTES
    assert kept_bytes("float16", 1000) == 1000 * WIDENED and kept_bytes("int8", 1000) == 1000
