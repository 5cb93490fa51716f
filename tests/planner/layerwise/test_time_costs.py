"""Cost tables of the layer-wise search, against what lowering moves and what the cost model says."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layers.search_nodes import find_search_nodes
from edgepart.planner.layerwise.configuration_cost import ConfigurationCosts
from edgepart.planner.layerwise.configurations import (
    is_on_one_device,
    list_configurations,
    make_space,
    max_configurations,
    select_configurations,
)
from edgepart.planner.layerwise.overlap import count_overlaps
from edgepart.planner.layerwise.time_costs import LayerwiseProblem, TimeCosts
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.draft import count_traffic
from edgepart.planner.lowering.lower import lower
from edgepart.planner.lowering.schedule import predict_seconds
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Region, span
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from tests.planner.small_models import quantised, residual
from tests.planner.small_transformers import attention, mlp, shuffled

MODELS = {
    "residual": residual(),
    "quantised": quantised(),
    "mlp": mlp(),
    "attention": attention(),
    "shuffled": shuffled(),
}
LINK = Link(1e8, 3e-4, 1e-4)


def study(model: str, *speeds: float, link: Link = LINK, memory_bytes: float = 4e9) -> Study:
    devices = tuple(
        Device(f"d{n}", "k", s, s / 4, memory_bytes, segment_s=2e-4) for n, s in enumerate(speeds)
    )
    return Study(Problem(load_graph(MODELS[model]), Cluster(devices, {}, link), "d0"))


def time_costs(memo: Memo) -> TimeCosts:
    return TimeCosts(memo, make_space(memo))


@cache
def solved_tables(model: str) -> tuple[Study, TimeCosts, LayerwiseProblem]:
    """On devices so slow that parts of sums are weighed too."""
    asked = study(model, 3e6, 2e6, 1e6, link=Link(1e8, 1e-5, 1e-5))
    made = time_costs(asked.memo)
    return asked, made, made.build_problem()


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_priced_is_what_lowering_moves(model: str, seed: int) -> None:
    asked, made, problem = solved_tables(model)
    taken = drawn(problem, seed)
    strategy = asked.candidates.make("drawn", problem.choices_of(taken), "")
    real = count_traffic(lower(asked.memo.problem, strategy, asked.memo.coarse.accesses)).elements
    homes = {name: (n, k) for n, node in enumerate(problem.nodes) for k, name in enumerate(node.exits)}
    readers: dict[str, list[tuple[int, int]]] = {}
    for n, node in enumerate(problem.nodes):
        for s, name in enumerate(node.sources):
            readers.setdefault(name, []).append((n, s))
    for name, (m, k) in homes.items():
        near = [n for n, _ in readers.get(name, ())]
        if len(near) != 1 or any(problem.nodes[n].is_junction for n in (m, near[0])):
            continue
        ((n, s),) = readers[name]
        moved = made.moved_bytes(problem.nodes[m], k, problem.nodes[n], s)[taken[m], taken[n]]
        expected = np.zeros_like(moved)
        places = {device.name: i for i, device in enumerate(asked.memo.cluster.devices)}
        for (tensor, source, target), elements in real.items():
            if tensor == name:
                expected[places[source], places[target]] += elements * asked.memo.cost.item_bytes(name)
        assert np.array_equal(moved, expected), name


def drawn(problem: LayerwiseProblem, seed: int) -> list[int]:
    """Nothing on several devices as a whole: lowering does not compute what is there once too often."""
    rng = random.Random(seed)
    return [rng.choice([n for n, one in enumerate(choices) if is_shared(one)]) for choices in problem.choices]


def is_shared(choice: Choice) -> bool:
    ends = choice.then if isinstance(choice, Reduce) else choice
    return isinstance(ends, Divide) or is_on_one_device(ends)


@pytest.mark.parametrize("model", ["residual", "mlp", "quantised"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_layer_takes_as_long_as_its_slowest_device(model: str, seed: int) -> None:
    asked, made, problem = solved_tables(model)
    plain = [
        [n for n, choice in enumerate(choices) if isinstance(choice, Divide) or is_on_one_device(choice)]
        for choices in problem.choices
    ]
    rng = random.Random(seed)
    taken = [rng.choice(values) for values in plain]
    strategy = asked.candidates.make("drawn", problem.choices_of(taken), "")
    seconds = predict_seconds(
        lower(asked.memo.problem, strategy, asked.memo.coarse.accesses), asked.memo.cost
    )
    for node, n in zip(problem.nodes, taken, strict=True):
        each = [
            sum(seconds.get((op.name, device.name), 0.0) for op in node.operators)
            for device in asked.memo.cluster.devices
        ]
        assert made.configurations_of(node).seconds[n] == pytest.approx(max(each), rel=1e-9), (
            node.layer.anchor.name
        )


def test_parts_of_a_sum_cost_their_part_their_addends_and_their_sum() -> None:
    devices = tuple(Device(f"d{n}", "k", 1e6, 1e9, 4e9) for n in range(2))
    asked = Study(Problem(load_graph(MODELS["mlp"]), Cluster(devices, {}, Link(1e8, 1e-5, 1e-5)), "d0"))
    made = time_costs(asked.memo)
    problem = made.build_problem()
    n = next(n for n, node in enumerate(problem.nodes) if node.layer.anchor.op_type == "MatMul" and n)
    one = made.configurations_of(problem.nodes[n])
    whole = next(s for c, s in zip(one.choices, one.seconds, strict=True) if c == Whole(("d0",)))
    rows = [
        row
        for row in zip(one.choices, one.addend_bytes, one.seconds, strict=True)
        if isinstance(row[0], Reduce)
    ]
    assert {type(choice.then) for choice, _, _ in rows if isinstance(choice, Reduce)} == {Whole, Divide}
    full = 6 * 12 * 4
    for choice, addends, seconds in rows:
        assert isinstance(choice, Reduce)
        moved = full if isinstance(choice.then, Whole) else full / 2
        assert addends.tolist() == [[0, moved], [moved, 0]]
        assert whole / 2 < seconds < whole
    assert not any(
        table.any()
        for choice, table in zip(one.choices, one.addend_bytes, strict=True)
        if not isinstance(choice, Reduce)
    )


def test_one_message_costs_what_the_simulator_says() -> None:
    """Conv on d0, pool on d1: the message, and a segment that is started and copies what it reads."""
    asked = study("residual", 1e9, 1e9)
    made, problem = time_costs(asked.memo), time_costs(asked.memo).build_problem()
    conv, pool = (next(r for r in problem.nodes if name in r.exits) for name in ("r3", "p"))
    found = made.edge(conv, 0, pool, 0)
    one, two = made.configurations_of(conv).choices, made.configurations_of(pool).choices
    here, there = Whole(("d0",)), Whole(("d1",))
    nbytes = 8 * 24 * 24 * 4
    wire = asked.memo.cost.transfer_s(nbytes, LINK)
    assert found[one.index(here), two.index(here)] == 0.0
    border = max(2e-4 + 2 * nbytes / 2.5e8, 2 * nbytes / 2.5e8)
    assert found[one.index(here), two.index(there)] == pytest.approx(wire + border)
    everywhere = Whole(("d0", "d1"))
    assert not found[one.index(everywhere)][[two.index(here), two.index(there), two.index(everywhere)]].any()


def test_a_device_sends_one_message_after_another() -> None:
    asked = study("residual", 1e9, 1e9, 1e9)
    made = time_costs(asked.memo)
    problem = made.build_problem()
    conv, pool = (next(r for r in problem.nodes if name in r.exits) for name in ("r3", "p"))
    one, two = made.configurations_of(conv).choices, made.configurations_of(pool).choices
    table = made.edge(conv, 0, pool, 0)
    rows = next(
        n for n, c in enumerate(two) if isinstance(c, Divide) and c.axes == ("height",) and len(c.shares) == 3
    )
    third = 8 * 8 * 24 * 4
    sent = 2 * (LINK.message_s + third / LINK.bytes_per_s) + LINK.message_s + LINK.latency_s
    border = max(2e-4 + 2 * third / 2.5e8, 2 * 3 * third / 2.5e8)
    assert table[one.index(Whole(("d0",))), rows] == pytest.approx(sent + border)


def test_inputs_are_brought_once_and_answers_are_fetched() -> None:
    """Both readers of the input stand on d1: only the first one in the model waits for it."""
    far = study("mlp", 1e9, 1e9, link=Link(1e8, 0.5))
    problem = time_costs(far.memo).build_problem()
    first, last = (next(n for n, r in enumerate(problem.nodes) if name in r.exits) for name in ("a", "y"))
    here, there = ([c.index(Whole((d,))) for c in problem.choices] for d in ("d0", "d1"))
    assert problem.unary[first][here[first]] < 0.1 < 0.5 < problem.unary[first][there[first]] < 0.6
    assert "x" in problem.nodes[last].sources
    assert problem.unary[last][here[last]] < 0.1 < 0.5 < problem.unary[last][there[last]] < 0.6


def test_weights_that_do_not_fit_cost_infinity() -> None:
    small = study("residual", 1e9, 1e9, memory_bytes=100_000)
    problem = time_costs(small.memo).build_problem()
    n = next(n for n, node in enumerate(problem.nodes) if "d1" in node.exits)
    weights = small.memo.graph.constants["f1"].nbytes
    assert 100_000 < weights < 200_000
    fits = {type(c) for c, s in zip(problem.choices[n], problem.unary[n], strict=True) if np.isfinite(s)}
    assert Whole not in fits and Divide in fits


def test_blocks_that_repeat_are_priced_once() -> None:
    from benchmarks.scale import transformer

    few, many = (load_graph(transformer(nodes).SerializeToString()) for nodes in (60, 240))
    kinds = []
    for graph in (few, many):
        asked = replace_graph(study("mlp", 1e9, 1e9).memo, graph)
        kinds.append({node.kind for node in find_search_nodes(asked.memo.coarse, asked.memo.cost.free)})
    assert len(kinds[0]) == len(kinds[1]) < 20


def replace_graph(memo: Memo, graph: object) -> Study:
    return Study(replace(memo.problem, graph=graph))  # type: ignore[arg-type]


def test_several_readers_of_a_view_meet_at_a_junction() -> None:
    from benchmarks.models import light

    asked = replace_graph(study("mlp", 1e9, 1e9).memo, load_graph(light("inception_v1")))
    found = find_search_nodes(asked.memo.coarse)
    joints = [node for node in found if node.is_junction]
    assert joints and all(node.layer.anchor.op_type == "Concat" for node in joints)
    named = {node.exits[0] for node in joints}
    assert all(len([r for r in found if name in r.sources]) > 1 for name in named)
    assert {layer.number for layer in asked.memo.layers} == {
        r.layer.number for r in found if not r.is_junction
    }


@st.composite
def regions(draw: st.DrawFn) -> Region:
    pairs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=3)
    return Region(tuple(span(*((a, a + size) for a, size in draw(pairs))) for _ in range(2)))


@given(
    st.lists(st.none() | regions(), min_size=1, max_size=4),
    st.lists(st.none() | regions(), min_size=1, max_size=4),
)
def test_overlaps_count_what_regions_have_in_common(
    ones: list[Region | None], twos: list[Region | None]
) -> None:
    found = count_overlaps(ones, twos)
    for n, a in enumerate(ones):
        for m, b in enumerate(twos):
            assert found[n, m] == (0 if a is None or b is None else a.intersect(b).size)


def test_choices_are_those_of_layers_only() -> None:
    asked, _, problem = solved_tables("shuffled")
    taken: dict[int, Choice] = problem.choices_of([0] * len(problem.nodes))
    assert set(taken) == {layer.number for layer in asked.memo.layers}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "speeds", [(3e6, 2e6, 1e6), (1.2e10, 6e9, 2.4e10, 1.8e10, 1.2e10, 6e9, 2.4e10, 1.8e10)]
)
@pytest.mark.parametrize("memory_bytes", [4e9, 2e4])
def test_what_is_not_measured_is_not_worth_it(
    model: str, speeds: tuple[float, ...], memory_bytes: float
) -> None:
    """The plain twin measures every configuration. No bound is above what is measured."""
    asked = study(model, *speeds, link=Link(1e8, 1e-5, 1e-5), memory_bytes=memory_bytes)
    made = time_costs(asked.memo)
    for node in asked.memo.operator_costs.search_nodes:
        costs = ConfigurationCosts(asked.memo, node)
        choices = list_configurations(
            node.layer, made.among, costs.speeds(), made._may_sum(node, costs.whole)
        )
        found = costs.measure(choices)
        seconds = [float(s) for s in found.seconds + made._summing_s(found.addend_bytes)]
        bounds = [costs.least_s(one) + made._least_summing_s(node, one) for one in choices]
        assert all(bound <= s * (1 + 1e-9) for bound, s in zip(bounds, seconds, strict=True))
        kept = tuple(
            choices[n]
            for n in select_configurations(choices, seconds, made._is_kept, max_configurations(len(speeds)))
        )
        assert made.configurations_of(node).choices == kept
