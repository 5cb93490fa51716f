"""Recursive two-way cuts: what they move, that each step moves least, and what is lifted of the paper's limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from benchmarks.models import light, sample_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.access.declare.protocol import Axis
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.errors import UsageError
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layerwise.byte_costs import ByteCosts
from edgepart.planner.layerwise.elimination import minimise
from edgepart.planner.layerwise.halving import Takes, Team, list_cuts, order_near_first
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole, cut_tiles
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.lowering.lower import lower, make_plan
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Region
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.registry import get
from edgepart.planner.strategies.tofu import (
    Recursion,
    RecursiveCuts,
    choose_paper_team,
    equal_s,
    list_teams,
    make_strategy,
)
from tests.planner.small_models import model, quantised, random, residual
from tests.planner.small_transformers import attention, mlp, shuffled

LAN = Link(1.17e8, 2e-4)
MODELS: dict[str, Callable[[], bytes]] = {
    "residual": lambda: residual(rows=32),
    "attention": lambda: attention(rows=16, heads=8),
    "shuffled": lambda: shuffled(rows=16, channels=24),
    "mlp": lambda: mlp(rows=16, width=24, hidden=40),
    "quantised": quantised,
}


def chain() -> bytes:
    """Two convolutions, a pool and two dense layers: each tensor is read once."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1], name="conv1"),
        helper.make_node("Conv", ["c1", "w2"], ["c2"], pads=[2, 2, 2, 2], name="conv2"),
        helper.make_node("MaxPool", ["c2"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "f1"], ["g1"], transB=1, name="dense1"),
        helper.make_node("Gemm", ["g1", "f2"], ["y"], transB=1, name="dense2"),
    ]
    weights = {"w1": random(1, 6, 3, 3, 3), "w2": random(2, 4, 6, 5, 5), "f1": random(3, 12, 80)}
    return model(nodes, {"x": (1, 3, 10, 8)}, ["y"], weights | {"f2": random(4, 8, 12)})


def study(
    source: bytes, *speeds: float, axis: str | None = None, gateway: str = "d0", link: Link = LAN
) -> Study:
    devices = tuple(Device(f"d{n}", "k", speed, speed / 4, 4e9) for n, speed in enumerate(speeds))
    return Study(Problem(load_graph(source), Cluster(devices, {}, link), gateway, axis=axis))


def search(asked: Study, team: Team | None = None) -> RecursiveCuts:
    return Recursion(ByteCosts(asked.memo), team or choose_paper_team(asked.memo)[0]).run()


def moved(asked: Study, choices: dict[int, Choice]) -> float:
    """Bytes between boxes, as lowering moves them."""
    draft = lower(asked.memo.problem, asked.candidates.make("tofu", choices, ""), asked.memo.coarse.accesses)
    home = asked.memo.problem.gateway
    return sum(draft.nbytes(m) for m in draft.moves if (m.source or home) != (m.target or home))


@pytest.mark.parametrize("gateway", ["d0", "d1"])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_what_is_counted_is_what_lowering_moves(count: int, gateway: str) -> None:
    asked = study(chain(), *[1e6] * count, gateway=gateway)
    for team, _ in (choose_paper_team(asked.memo), *list_teams(asked.memo)):
        found = search(asked, team)
        assert moved(asked, found.choices) == found.moved_bytes > 0
        assert all(one.exact for one in found.solutions)


def test_a_step_moves_least_of_all_that_could_be_cut() -> None:
    """Every combination is lowered; nothing here uses the search's tables."""
    asked = study(chain(), 1e6, 1e6)
    team = choose_paper_team(asked.memo)[0]
    ways = [list_cuts(layer, None, team, 0, lambda axis: True) for layer in asked.memo.layers]
    numbers = [layer.number for layer in asked.memo.layers]
    everything = [moved(asked, dict(zip(numbers, taken, strict=True))) for taken in product(*ways)]
    assert len(everything) > 100
    assert search(asked).moved_bytes == min(everything) < max(everything)


def test_the_second_step_moves_least_of_all_that_halves_the_first() -> None:
    asked = study(mlp(), 1e6, 1e6, 1e6, 1e6)
    team, traffic = choose_paper_team(asked.memo)[0], ByteCosts(asked.memo)
    first = Recursion(traffic, Team(team.levels[0])).run().choices
    ways = [list_cuts(layer, first[layer.number], team, 1, lambda axis: True) for layer in asked.memo.layers]
    assert [node.layer for node in traffic.nodes] == list(asked.memo.layers)
    costs = []
    for taken in product(*ways):
        weighed = [traffic.measure(node, (one,)) for node, one in zip(traffic.nodes, taken, strict=True)]
        costs.append(minimise(*traffic.tables(weighed, "d0")).cost)
    assert search(asked, team).moved_bytes == min(costs)


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_no_single_axis_moves_less(name: str, count: int) -> None:
    asked = study(MODELS[name](), *[1e6] * count)
    free = search(asked).moved_bytes
    axes = [axis for axis in asked.memo.axis_names if has_a_part_for_everybody(asked.memo, axis)]
    assert axes
    assert {axis: along(asked.memo, axis) for axis in axes if along(asked.memo, axis) < free} == {}


def has_a_part_for_everybody(memo: Memo, name: str) -> bool:
    axes = [axis for layer in memo.layers for axis in layer.axes if axis.name == name and layer.splits(name)]
    return all(axis.extent >= axis.quantum * len(memo.by_speed) for axis in axes)


def along(memo: Memo, axis: str) -> float:
    """Bytes where every layer that has `axis` is cut along it at each level, and the others as moves least."""
    traffic, team = ByteCosts(memo), choose_paper_team(memo)[0]
    before: list[Choice | None] = [None] * len(traffic.nodes)
    cost = 0.0
    for level in range(len(team.levels)):
        weighed = [
            traffic.measure(node, list_cuts(node.layer, one, team, level, only(node.layer, axis)))
            for node, one in zip(traffic.nodes, before, strict=True)
        ]
        solution = minimise(*traffic.tables(weighed, "d0"))
        before = [one.choices[n] for one, n in zip(weighed, solution.choice, strict=True)]
        cost = solution.cost
    return cost


def only(layer: Layer, name: str) -> Takes:
    return (lambda axis: axis.name == name) if layer.splits(name) else (lambda axis: True)


@pytest.mark.parametrize("count", [3, 4, 7])
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_one_session(name: str, count: int) -> None:
    source = MODELS[name]()
    asked = study(source, *[1e6 * (1 + n) for n in range(count)])
    inputs = sample_inputs(asked.memo.graph, 3)
    whole = run_alone(source, inputs)
    for made in list(get("tofu")(asked))[:2]:
        assert len(used(made)) > 1
        accesses = asked.memo.coarse.accesses
        plan = make_plan(asked.memo.problem, made, model_digest="m", cost=asked.memo.cost, accesses=accesses)
        parts = LocalRun(plan, asked.memo.graph).run(inputs)
        for output, value in whole.items():
            assert np.abs(parts[output] - value).max() <= 1e-4 * np.abs(value).max(), output


def used(made: Strategy) -> set[str]:
    return {device for layout in made.layouts.values() for device in layout.regions}


def test_as_in_the_paper_all_devices_that_make_a_power_of_two_take_equal_parts_of_every_layer() -> None:
    asked = study(residual(rows=32), 4e6, 1e6, 2e6, 3e6, 1e6)
    team, _ = choose_paper_team(asked.memo)
    assert team.shares == (("d0", 0.25), ("d3", 0.25), ("d2", 0.25), ("d1", 0.25))
    found = search(asked, team)
    made = make_strategy(asked, found, "")
    assert used(made) == {"d0", "d1", "d2", "d3"}
    convolutions = [name for name in made.layouts if name.startswith("c")]
    for name in convolutions:
        sizes = {region.size for region in made.layouts[name].regions.values()}
        assert len(made.layouts[name].regions) == 4 and len(sizes) == 1, name


def test_beyond_the_paper_parts_follow_speed_and_slow_devices_may_be_left_out() -> None:
    asked = study(residual(rows=64), 4e6, 4e6, 4e6, 1e4, link=Link(1e9, 1e-6, 1e-6))
    made = list(get("tofu")(asked))
    assert "as in the paper" not in " ".join(one.why for one in made) and "beyond the paper" in made[0].why
    parts = made[0].layouts["c1"].regions
    assert "d3" not in parts or parts["d3"].size < 0.1 * parts["d0"].size
    best = asked.scorer.pick_best(made)
    assert used(best) == {"d0", "d1", "d2"} and "3 of 4 devices" in best.why


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [2, 4, 8])
def test_equal_halves_take_at_least_as_long_as_they_are_said_to(name: str, count: int) -> None:
    """Every device has its part of every layer, whatever was cut; and no candidate is left out that would be the best."""
    asked = study(MODELS[name](), *(1e9 * (1 + n % 3) for n in range(count)))
    first, words = choose_paper_team(asked.memo)
    made = make_strategy(asked, search(asked, first), words)
    least_s = equal_s(asked.memo, first)
    assert 0 <= least_s <= max(asked.scorer.outline(made).compute_s.values()) * (1 + 1e-9)
    scores = [asked.scorer.score(one) for one in get("tofu")(asked)]
    assert min(scores) <= asked.scorer.score(made)


def test_equal_halves_of_very_unequal_devices_are_not_searched_for() -> None:
    asked = study(chain(), 8e6, 8e6, 8e6, 1e6, link=Link(1e9, 1e-6, 1e-6))
    assert not any("as in the paper" in one.why for one in get("tofu")(asked))
    asked = study(chain(), 8e6, 8e6, 8e6, 7e6, link=Link(1e9, 1e-6, 1e-6))
    assert any("as in the paper" in one.why for one in get("tofu")(asked))


def test_where_memory_is_short_few_copies_of_weights_are_kept() -> None:
    graph = load_graph(light("resnet50"))
    weights = sum(constant.nbytes for constant in graph.constants.values())
    devices = tuple(Device(f"d{n}", "k", 1.2e10, 3e9, 0.5 * weights) for n in range(4))
    asked = Study(Problem(graph, Cluster(devices, {}, LAN), "d0"))
    team, _ = choose_paper_team(asked.memo)
    free, counted = (Recursion(ByteCosts(asked.memo, one), team).run() for one in (False, True))
    assert asked.scorer.short_bytes(make_strategy(asked, free, "")) != {}
    assert asked.scorer.short_bytes(make_strategy(asked, counted, "")) == {}
    assert counted.moved_bytes >= free.moved_bytes + weights
    assert "copies of weights counted" in asked.scorer.pick_best(get("tofu")(asked)).why


def test_devices_that_are_alike_are_searched_for_once() -> None:
    made = list(get("tofu")(study(residual(), 1e6, 1e6)))
    assert [used(one) for one in made] == [{"d0", "d1"}, {"d0"}]


def test_devices_on_quick_links_are_cut_apart_last() -> None:
    quick, slow = Link(1e9, 1e-4), Link(1e6, 1e-2)
    names = [f"d{n}" for n in range(6)]
    room = {name: n % 2 for n, name in enumerate(names)}
    links = {(a, b): quick for a in names for b in names if a < b and room[a] == room[b]}
    devices = tuple(Device(name, "k", 1e6, 1e6, 1e9) for name in names)
    order = order_near_first(Cluster(devices, links, slow), names)
    assert order == ("d0", "d2", "d4", "d1", "d3", "d5")
    first, second = Team(tuple((name, 1.0) for name in order)).levels[0]
    assert first == ("d0", 3.0) and second == ("d1", 3.0)


def test_every_group_is_halved_until_devices_are_left() -> None:
    team = Team(tuple((name, 1.0) for name in "abcde"))
    assert team.levels == (
        (("a", 3.0), ("d", 2.0)),
        (("a", 2.0), ("c", 1.0), ("d", 1.0), ("e", 1.0)),
        tuple((name, 1.0) for name in "abcde"),
    )
    assert Team((("a", 1.0),)).levels == ()


AXES = (Axis("batch", 0, 3), Axis("channel", 1, 24, quantum=2), Axis("height", 2, 17))
BOX = Layer(0, (), ("t",), AXES, opaque=False)
FULL = Region.full((3, 24, 17))


@given(
    st.lists(st.floats(0.1, 10), min_size=2, max_size=9),
    st.lists(st.sampled_from([axis.name for axis in AXES]), min_size=4, max_size=4),
)
@settings(max_examples=100)
def test_halves_of_halves_are_the_whole_and_each_level_refines_the_last(
    shares: list[float], axes: list[str]
) -> None:
    team = Team(tuple((f"d{n}", share) for n, share in enumerate(shares)))
    coarser = {"d0": FULL}
    for level, groups in enumerate(team.levels):
        found = cut_tiles("t", FULL, BOX, Divide(tuple(axes[: level + 1]), groups))
        assert sum(tile.size for tile in found.values()) == FULL.size
        assert not FULL.subtract_all(found.values())
        assert all(tile.is_box for tile in found.values())
        for tile in found.values():
            assert any(tile.intersect(above) == tile for above in coarser.values())
        coarser = found


def test_equal_halves_along_three_axes_are_a_grid() -> None:
    eight = tuple((f"d{n}", 1.0) for n in range(8))
    layer = Layer(0, (), ("t",), tuple(Axis(n, i, 4) for i, n in enumerate("abc")), opaque=False)
    found = cut_tiles("t", Region.full((4, 4, 4)), layer, Divide(("a", "b", "a"), eight))
    assert found["d0"] == Region.box((0, 1), (0, 2), (0, 4))
    assert found["d1"] == Region.box((1, 2), (0, 2), (0, 4))
    assert found["d6"] == Region.box((2, 3), (2, 4), (0, 4))
    cubes = cut_tiles("t", Region.full((4, 4, 4)), layer, Divide(("a", "b", "c"), eight))
    assert {tile.shape for tile in cubes.values()} == {(2, 2, 2)}


def test_too_few_axes_for_the_devices_are_an_error() -> None:
    five = tuple((f"d{n}", 1.0) for n in range(5))
    with pytest.raises(ValueError, match="not enough"):
        cut_tiles("t", FULL, BOX, Divide(("batch", "height"), five))


def test_what_cannot_be_cut_is_on_one_half_or_on_both() -> None:
    team = Team(tuple((name, 1.0) for name in "abc"))
    opaque = Layer(0, (), ("t",), (), opaque=True)
    anything = lambda axis: True  # noqa: E731
    assert list_cuts(opaque, None, team, 0, anything) == (Whole(("a",)), Whole(("c",)), Whole(("a", "c")))
    assert list_cuts(opaque, Whole(("a",)), team, 1, anything) == (Whole(("a",)), Whole(("b",)))
    assert list_cuts(opaque, Whole(("c",)), team, 1, anything) == (Whole(("c",)),)
    assert list_cuts(opaque, Whole(("a", "c")), team, 1, anything) == (Whole(("a", "b", "c")),)


def test_an_axis_is_cut_while_there_is_a_part_for_everybody() -> None:
    team = Team(tuple((name, 1.0) for name in "abcdefgh"))
    axes = (Axis("batch", 0, 2), Axis("height", 1, 4))
    layer, before = Layer(0, (), ("t",), axes, opaque=False), Divide(("batch",), team.levels[0])
    found = list_cuts(layer, before, team, 1, lambda axis: True)
    assert found == (Divide(("batch", "height"), team.levels[1]),)
    last = list_cuts(layer, found[0], team, 2, lambda axis: True)
    assert last == (Divide(("batch", "height", "height"), team.levels[2]),)


def test_sums_stay_sums_and_are_cut_in_pieces() -> None:
    asked = study(mlp(), 1e6, 1e6, 1e6, 1e6)
    team = choose_paper_team(asked.memo)[0]
    layer = asked.memo.layers[0]
    first = [c for c in list_cuts(layer, None, team, 0, lambda axis: True) if isinstance(c, Reduce)]
    assert first and all(isinstance(one.then, Divide) and one.shares == team.levels[0] for one in first)
    second = list_cuts(layer, first[0], team, 1, lambda axis: True)
    assert second and all(isinstance(c, Reduce) and c.axis == first[0].axis for c in second)
    assert all(c.shares == team.levels[1] for c in second if isinstance(c, Reduce))


@pytest.mark.parametrize("axis", ["height", "channel", "inner"])
def test_a_forced_axis_is_kept(axis: str) -> None:
    asked = study(residual(), 3e6, 2e6, 1e6, axis=axis)
    found = search(asked, next(list_teams(asked.memo))[0])
    names: set[str] = set()
    for one in found.choices.values():
        names |= (
            set(one.axes) if isinstance(one, Divide) else {one.axis} if isinstance(one, Reduce) else set()
        )
    assert names == {axis}


def test_an_axis_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"diagonal.*height"):
        list(get("tofu")(study(residual(), 1e6, 1e6, axis="diagonal")))


def test_one_device_does_it_all() -> None:
    (only_one,) = get("tofu")(study(residual(), 1e6))
    assert "whole model on d0" in only_one.why


def test_equal_questions_have_equal_answers() -> None:
    first, second = (search(study(attention(), 3e6, 3e6, 1e6, 1e6)) for _ in range(2))
    assert first == second


def test_a_real_model_is_cut_in_space_at_each_step_and_moves_more_at_each() -> None:
    asked = Study(Problem(load_graph(light("squeezenet")), study(mlp(), *[1e9] * 8).memo.cluster, "d0"))
    found = search(asked)
    costs = [one.cost for one in found.solutions]
    assert len(costs) == 3 and costs == sorted(costs) and all(one.exact for one in found.solutions)
    early = [found.choices[layer.number] for layer in asked.memo.layers[:3]]
    assert all(isinstance(one, Divide) and set(one.axes) <= {"height", "width"} for one in early)
