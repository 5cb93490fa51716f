"""Detours: a schedule whose messages go around slow links computes the same from the same values, and ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from edgepart.agent.execution.schedule import make_schedule
from edgepart.agent.verify.local_run import LocalRun
from edgepart.planner.devices import routes
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layout.strategy import Layout, Problem, Strategy, Sync
from edgepart.planner.lowering import detours
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import broken_plan_rules, check_plan
from edgepart.planner.plans.plan import GATEWAY, Plan, Receive, Run, Send, Transfer
from edgepart.planner.region import Region, span
from edgepart.planner.simulation.latency import simulate
from tests.planner.random_plans import inputs_of, models, problem_of, strategies_for
from tests.planner.small_models import model, random

QUICK = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """So that small tensors are cut as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "LEAST_BYTES", 8)
        yield


def both(problem: Problem, strategy: Strategy, tensors: Iterable[str]) -> tuple[Plan, Plan]:
    """Straight and with detours."""
    plain = make_plan(problem, strategy, model_digest="m")
    around = make_plan(problem, replace(strategy, detours=frozenset(tensors)), model_digest="m")
    return plain, check_plan(around, problem.graph)


def assert_same_work(plain: Plan, passed: Plan) -> None:
    """The same segments, bit for bit, of the same pieces."""
    assert plain.programs.keys() == passed.programs.keys()
    for device, program in plain.programs.items():
        assert program.segments == passed.programs[device].segments


def assert_same_answer(plain: Plan, passed: Plan, graph: Graph) -> None:
    inputs = inputs_of(graph)
    expected = LocalRun(plain, graph).run(inputs)
    found = LocalRun(passed, graph).run(inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@QUICK
@given(st.data())
def test_any_plan_answers_the_same_with_detours(data: st.DataObject) -> None:
    graph = load_graph(data.draw(models()).SerializeToString())
    strategy = data.draw(strategies_for(graph, [Sync.NEEDED, Sync.HUB, Sync.BROADCAST]))
    if data.draw(st.booleans()):
        strategy = replace(strategy, early=frozenset(graph.producers))
    names = [*graph.inputs, *graph.producers]
    detours = data.draw(st.one_of(st.just(names), st.lists(st.sampled_from(names), min_size=1)))
    problem = problem_of(graph)
    boxes = [device.name for device in problem.cluster.devices]
    links = {data.draw(st.sampled_from(list(combinations(boxes, 2)))): Link(1e4, 1e-4)}
    problem = replace(problem, cluster=replace(problem.cluster, links=links))
    plain, around = both(problem, strategy, detours)
    assert_same_work(plain, around)
    assert_same_answer(plain, around, graph)


def fan(count: int, height: int = 32) -> tuple[Problem, Strategy]:
    """One device makes all of a tensor, and every device needs all of it for its part of the next one's channels; its link
    to the second device is slow."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "a"),
        helper.make_node("Conv", ["a", "w1"], ["y"], "y"),
    ]
    weights = {"w0": random(0, 16, 2, 1, 1), "w1": random(1, 8, 16, 1, 1)}
    graph = load_graph(model(nodes, {"x": (1, 2, height, height)}, ["y"], weights))
    devices = tuple(Device(f"d{n}", "k", 1e9, 1e9, 8e9) for n in range(count))
    cluster = Cluster(devices, {("d0", "d1"): Link(1.25e4, 1e-4)}, Link(1.25e6, 1e-4))
    parts = {
        f"d{n}": graph.region_of("y").replace(1, span((n * 8 // count, (n + 1) * 8 // count)))
        for n in range(count)
    }
    layouts = {"a": Layout({"d0": graph.region_of("a")}), "y": Layout(parts)}
    return Problem(graph, cluster, "d0"), Strategy("fan", layouts)


@pytest.mark.parametrize("count", range(3, 9))
def test_nothing_crosses_the_slow_link(count: int) -> None:
    """The source sends one copy less, the request is quicker, and every device ends with the same."""
    problem, strategy = fan(count)
    size = problem.graph.tensors["a"].nbytes
    plain, around = both(problem, strategy, {"a"})
    straight, found = (simulate(plan, problem.cluster, "d0") for plan in (plain, around))
    assert not any((t.source, t.target) == ("d0", "d1") for t in around.transfers)
    assert straight.sent_bytes["d0"] - found.sent_bytes["d0"] == size
    assert found.latency_s < straight.latency_s
    assert sum(found.received_bytes.values()) == sum(straight.received_bytes.values())
    assert_same_work(plain, around)
    assert_same_answer(plain, around, problem.graph)


def test_a_relay_passes_on_what_came_as_it_came() -> None:
    """A chunk after another, and no array is made for it."""
    problem, strategy = fan(3)
    _, around = both(problem, strategy, {"a"})
    program = around.programs["d2"]
    steps = [step for step in program.steps if not isinstance(step, Run)]
    passing = [
        (one, two) for one, two in pairwise(steps) if isinstance(one, Receive) and isinstance(two, Send)
    ]
    chunks = [
        (one, two)
        for one, two in passing
        if around.transfers[one.transfer].pieces == around.transfers[two.transfer].pieces
    ]
    assert len(chunks) > 3
    schedule = make_schedule(program, around.transfers)
    for n, step in enumerate(program.steps):
        if isinstance(step, Send) and step in [two for _, two in chunks]:
            assert all(one.crop is None and not one.copies for one in schedule.recipes[n])
    assert [step for step in program.steps if isinstance(step, Run)] == [Run(0)]


def test_what_a_relay_holds_is_counted() -> None:
    """d1 needs a part only of what it passes on."""
    problem, strategy = fan(3)
    full = problem.graph.region_of("a")
    links = {("d0", "d2"): Link(1e4, 1e-4)}
    problem = replace(problem, cluster=replace(problem.cluster, links=links))
    only = {
        "d0": problem.graph.region_of("y").replace(1, span((0, 4))),
        "d2": problem.graph.region_of("y").replace(1, span((4, 8))),
    }
    tiny = {"d1": full.replace(2, span((0, 1)))}
    layouts = {"a": Layout({"d0": full.replace(2, span((1, 32))), **tiny}), "y": Layout(only)}
    plain, passed = both(problem, replace(strategy, layouts=layouts), {"a"})
    brought = sum(t.nbytes for t in passed.transfers if t.target == "d1" and t.source == "d0")
    assert brought == full.replace(2, span((1, 32))).size * 4
    more = passed.programs["d1"].request_bytes - plain.programs["d1"].request_bytes
    assert more >= brought * 0.9
    assert (
        simulate(passed, problem.cluster, "d0").latency_s < simulate(plain, problem.cluster, "d0").latency_s
    )
    assert_same_answer(plain, passed, problem.graph)


def test_the_models_input_goes_around() -> None:
    """The gateway does not send it over the slow link, and not twice over another."""
    problem, strategy = fan(4)
    y = strategy.layouts["y"].regions
    layouts = {"a": Layout(dict.fromkeys(y, problem.graph.region_of("a"))), "y": Layout(y)}
    plain, around = both(problem, replace(strategy, layouts=layouts), {"x"})
    size = problem.graph.tensors["x"].nbytes

    def over_the_network(plan: Plan) -> int:
        return sum(t.nbytes for t in plan.transfers if t.source == GATEWAY and t.target != "d0")

    assert over_the_network(plain) == 3 * size
    assert over_the_network(around) == 2 * size
    assert (
        simulate(around, problem.cluster, "d0").latency_s < simulate(plain, problem.cluster, "d0").latency_s
    )
    assert_same_answer(plain, around, problem.graph)


def test_what_overlaps_is_sent_once() -> None:
    """Halves that overlap by two rows: those come to d1 from d2, which needs them too, and each row crosses a link once."""
    problem, strategy = fan(3)
    y = problem.graph.region_of("y")
    rows = {"d1": y.replace(2, span((0, 17))), "d2": y.replace(2, span((15, 32)))}
    layouts = {**strategy.layouts, "y": Layout(rows)}
    plain, around = both(problem, replace(strategy, layouts=layouts), {"a"})
    row = problem.graph.region_of("a").replace(2, span((0, 1))).size * 4

    def bytes_between(plan: Plan, source: str, target: str) -> int:
        return sum(t.nbytes for t in plan.transfers if (t.source, t.target) == (source, target))

    assert [bytes_between(plain, "d0", name) for name in ("d1", "d2")] == [17 * row, 17 * row]
    assert [bytes_between(around, "d0", name) for name in ("d1", "d2")] == [0, 32 * row]
    assert bytes_between(around, "d2", "d1") == 17 * row
    assert_same_answer(plain, around, problem.graph)


def test_relays_that_wait_for_each_other_are_refused() -> None:
    """One that sends before it has it lacks that; two of which each waits for the other's come to no end."""
    problem, strategy = fan(3)
    _, around = both(problem, strategy, {"a"})
    program = around.programs["d2"]
    sends = [
        step
        for step in program.steps
        if isinstance(step, Send) and around.transfers[step.transfer].target == "d1"
    ]
    early = replace(program, steps=(*sends, *(step for step in program.steps if step not in sends)))
    lacking = list(broken_plan_rules(replace(around, programs={**around.programs, "d2": early})))
    assert lacking and all("lacks" in fault for fault in lacking)
    back = Transfer(len(around.transfers), "d1", "d2", around.transfers[sends[0].transfer].pieces, 0)
    waiting = replace(program, steps=(Receive(back.number), *program.steps))
    other = around.programs["d1"]
    answer = replace(other, steps=(*other.steps, Send(back.number)))
    cyclic = replace(
        around,
        transfers=(*around.transfers, back),
        programs={**around.programs, "d2": waiting, "d1": answer},
    )
    assert any("for ever" in fault for fault in broken_plan_rules(cyclic))


@pytest.mark.parametrize("extents", [(7,), (1, 5, 3), (1, 64, 9), (2, 2)])
@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_chunks_are_the_piece(extents: tuple[int, ...], count: int) -> None:
    parts = detours._cut(Region.full(extents), count)
    assert len(parts) <= count
    assert sum(part.size for part in parts) == Region.full(extents).size
    assert not Region.full(extents).subtract_all(parts)


def test_chunks_of_what_has_gaps() -> None:
    region = Region((span((0, 3), (10, 12), (20, 25)),))
    parts = detours._cut(region, 4)
    assert sum(part.size for part in parts) == 10 and not region.subtract_all(parts)
