"""Relays: a schedule whose messages are passed on computes the same segments from the same values, and comes to an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from edgepart.agent.execution.schedule import make_schedule
from edgepart.agent.verify.local_run import LocalRun
from edgepart.planner.devices import routes
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.devices.routes import RouteShape
from edgepart.planner.layout.strategy import Layout, Problem, Strategy, Sync
from edgepart.planner.lowering import relays
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import broken_rules, check
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


def both(problem: Problem, strategy: Strategy, shapes: dict[str, RouteShape]) -> tuple[Plan, Plan]:
    """Straight and with relays."""
    plain = make_plan(problem, strategy, model_digest="m")
    passed = make_plan(problem, replace(strategy, relays=shapes), model_digest="m")
    return plain, check(passed, problem.graph)


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
def test_any_plan_answers_the_same_with_relays(data: st.DataObject) -> None:
    graph = load_graph(data.draw(models()).SerializeToString())
    strategy = data.draw(strategies_for(graph, [Sync.NEEDED, Sync.HUB, Sync.BROADCAST]))
    if data.draw(st.booleans()):
        strategy = replace(strategy, early=frozenset(graph.producers))
    names = [*graph.inputs, *graph.producers]
    shapes = data.draw(st.sampled_from([[one] for one in RouteShape] + [list(RouteShape)]))
    shaped = {name: data.draw(st.sampled_from(shapes)) for name in names}
    plain, passed = both(problem_of(graph), strategy, shaped)
    assert_same_work(plain, passed)
    assert_same_answer(plain, passed, graph)


def fan(count: int, height: int = 32) -> tuple[Problem, Strategy]:
    """One device makes all of a tensor, and every device needs all of it for its part of the next one's channels."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "a"),
        helper.make_node("Conv", ["a", "w1"], ["y"], "y"),
    ]
    weights = {"w0": random(0, 16, 2, 1, 1), "w1": random(1, 8, 16, 1, 1)}
    graph = load_graph(model(nodes, {"x": (1, 2, height, height)}, ["y"], weights))
    devices = tuple(Device(f"d{n}", "k", 1e9, 1e9, 8e9) for n in range(count))
    cluster = Cluster(devices, {}, Link(1.25e6, 1e-4))
    parts = {
        f"d{n}": graph.region_of("y").replace(1, span((n * 8 // count, (n + 1) * 8 // count)))
        for n in range(count)
    }
    layouts = {"a": Layout({"d0": graph.region_of("a")}), "y": Layout(parts)}
    return Problem(graph, cluster, "d0"), Strategy("fan", layouts)


@pytest.mark.parametrize("count", range(3, 9))
def test_the_source_sends_a_large_piece_about_once(count: int) -> None:
    """Instead of once to each: S bytes, not (n - 1) S; the request is quicker, and every device ends with the same."""
    problem, strategy = fan(count)
    size = problem.graph.tensors["a"].nbytes
    plain, chain = both(problem, strategy, {"a": RouteShape.CHAIN})
    _, scatter = both(problem, strategy, {"a": RouteShape.SCATTER})
    _, tree = both(problem, strategy, {"a": RouteShape.TREE})
    straight = simulate(plain, problem.cluster, "d0")
    out = straight.sent_bytes["d0"] - (count - 1) * size
    assert out >= 0
    for passed in (chain, scatter):
        found = simulate(passed, problem.cluster, "d0")
        assert found.sent_bytes["d0"] - out == size
        assert found.latency_s < straight.latency_s
        assert sum(found.received_bytes.values()) == sum(straight.received_bytes.values())
        assert_same_work(plain, passed)
        assert_same_answer(plain, passed, problem.graph)
    assert simulate(tree, problem.cluster, "d0").sent_bytes["d0"] - out < (count - 1) * size
    assert_same_answer(plain, tree, problem.graph)


def test_a_relay_passes_on_what_came_as_it_came() -> None:
    """A chunk after another, and no array is made for it."""
    problem, strategy = fan(3)
    _, chain = both(problem, strategy, {"a": RouteShape.CHAIN})
    program = chain.programs["d1"]
    steps = [step for step in program.steps if not isinstance(step, Run)]
    passing = [
        (one, two) for one, two in pairwise(steps) if isinstance(one, Receive) and isinstance(two, Send)
    ]
    chunks = [
        (one, two)
        for one, two in passing
        if chain.transfers[one.transfer].pieces == chain.transfers[two.transfer].pieces
    ]
    assert len(chunks) > 3
    schedule = make_schedule(program, chain.transfers)
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
    plain, passed = both(problem, replace(strategy, layouts=layouts), {"a": RouteShape.AROUND})
    brought = sum(t.nbytes for t in passed.transfers if t.target == "d1" and t.source == "d0")
    assert brought == full.replace(2, span((1, 32))).size * 4
    more = passed.programs["d1"].request_bytes - plain.programs["d1"].request_bytes
    assert more >= brought * 0.9
    assert (
        simulate(passed, problem.cluster, "d0").latency_s < simulate(plain, problem.cluster, "d0").latency_s
    )
    assert_same_answer(plain, passed, problem.graph)


def test_the_models_input_is_passed_on() -> None:
    """Nobody but the first device hears from the gateway over the network."""
    problem, strategy = fan(4)
    y = strategy.layouts["y"].regions
    layouts = {"a": Layout(dict.fromkeys(y, problem.graph.region_of("a"))), "y": Layout(y)}
    plain, passed = both(problem, replace(strategy, layouts=layouts), {"x": RouteShape.CHAIN})
    size = problem.graph.tensors["x"].nbytes

    def over_the_network(plan: Plan) -> int:
        return sum(t.nbytes for t in plan.transfers if t.source == GATEWAY and t.target != "d0")

    assert over_the_network(plain) == 3 * size
    assert over_the_network(passed) == size
    assert (
        simulate(passed, problem.cluster, "d0").latency_s < simulate(plain, problem.cluster, "d0").latency_s
    )
    assert_same_answer(plain, passed, problem.graph)


def test_only_what_all_need_is_passed_on() -> None:
    """Halves that overlap by two rows: those go by relay, the others straight, and each once."""
    problem, strategy = fan(3)
    y = problem.graph.region_of("y")
    rows = {"d1": y.replace(2, span((0, 17))), "d2": y.replace(2, span((15, 32)))}
    plain, passed = both(
        problem, replace(strategy, layouts={**strategy.layouts, "y": Layout(rows)}), {"a": RouteShape.CHAIN}
    )
    row = problem.graph.region_of("a").replace(2, span((0, 1))).size * 4

    def bytes_between(plan: Plan, source: str, target: str) -> int:
        return sum(t.nbytes for t in plan.transfers if (t.source, t.target) == (source, target))

    assert [bytes_between(plain, "d0", name) for name in ("d1", "d2")] == [17 * row, 17 * row]
    assert bytes_between(passed, "d0", "d1") + bytes_between(passed, "d0", "d2") == 32 * row
    assert bytes_between(passed, "d1", "d2") + bytes_between(passed, "d2", "d1") == 2 * row
    assert_same_answer(plain, passed, problem.graph)


def test_relays_that_wait_for_each_other_are_refused() -> None:
    """One that sends before it has it lacks that; two of which each waits for the other's come to no end."""
    problem, strategy = fan(3)
    _, chain = both(problem, strategy, {"a": RouteShape.CHAIN})
    program = chain.programs["d1"]
    sends = [
        step
        for step in program.steps
        if isinstance(step, Send) and chain.transfers[step.transfer].target == "d2"
    ]
    early = replace(program, steps=(*sends, *(step for step in program.steps if step not in sends)))
    lacking = list(broken_rules(replace(chain, programs={**chain.programs, "d1": early})))
    assert lacking and all("lacks" in fault for fault in lacking)
    back = Transfer(len(chain.transfers), "d2", "d1", chain.transfers[sends[0].transfer].pieces, 0)
    waiting = replace(program, steps=(Receive(back.number), *program.steps))
    other = chain.programs["d2"]
    answer = replace(other, steps=(*other.steps, Send(back.number)))
    cyclic = replace(
        chain,
        transfers=(*chain.transfers, back),
        programs={**chain.programs, "d1": waiting, "d2": answer},
    )
    assert any("for ever" in fault for fault in broken_rules(cyclic))


@pytest.mark.parametrize("extents", [(7,), (1, 5, 3), (1, 64, 9), (2, 2)])
@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_chunks_are_the_piece(extents: tuple[int, ...], count: int) -> None:
    parts = relays._cut(Region.full(extents), count)
    assert len(parts) <= count
    assert sum(part.size for part in parts) == Region.full(extents).size
    assert not Region.full(extents).subtract_all(parts)


def test_chunks_of_what_has_gaps() -> None:
    region = Region((span((0, 3), (10, 12), (20, 25)),))
    parts = relays._cut(region, 4)
    assert sum(part.size for part in parts) == 10 and not region.subtract_all(parts)
