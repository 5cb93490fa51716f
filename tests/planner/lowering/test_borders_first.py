"""Borders first: a schedule with stages cut answers the same, sends no later than it did, and comes to an end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from benchmarks.models import light, sample_inputs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.layout.strategy import Layout, Problem, Strategy, Sync
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Plan, Program, Receive, Run, Send
from edgepart.planner.region import Array, span
from tests.nightly import nightly
from tests.planner.cost.test_chain_cost import drawn, studied
from tests.planner.random_plans import inputs_of, models, problem_of, rows, strategies_for

QUICK = settings(max_examples=40, suppress_health_check=list(HealthCheck))

NETWORKS = [
    ("squeezenet", 2),
    ("inception_v1", 4),
    pytest.param("resnet50", 4, marks=pytest.mark.nightly),
    pytest.param("vgg19", 3, marks=pytest.mark.nightly),
]


def among(graph: Graph, count: int) -> Problem:
    devices = (Device(f"d{n}", "k", 1e9, 1e9, 8e9) for n in range(count))
    return Problem(graph, Cluster(tuple(devices)), "d0")


def both(problem: Problem, strategy: Strategy, early: frozenset[str]) -> tuple[Plan, Plan]:
    """Without and with cuts."""
    plain = make_plan(problem, strategy, model_digest="m")
    cut = make_plan(problem, replace(strategy, early=early), model_digest="m")
    return plain, check_plan(cut, problem.graph)


def assert_same_answer(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=0, atol=1e-4 * max(1e-6, np.abs(value).max(initial=0))
        )


def received_before(program: Program) -> dict[int, set[int]]:
    """By transfer that is sent, those that are waited for until then."""
    received: set[int] = set()
    found: dict[int, set[int]] = {}
    for step in program.steps:
        if isinstance(step, Receive):
            received.add(step.transfer)
        elif isinstance(step, Send):
            found[step.transfer] = set(received)
    return found


def assert_nobody_waits_for_more(plain: Plan, cut: Plan) -> None:
    assert plain.transfers == cut.transfers
    for device, program in cut.programs.items():
        before, after = received_before(plain.programs[device]), received_before(program)
        assert before.keys() == after.keys()
        assert all(after[number] <= before[number] for number in after)


@QUICK
@given(st.data())
def test_any_plan_answers_the_same_with_borders_first(data: st.DataObject) -> None:
    model = data.draw(models())
    graph = load_graph(model.SerializeToString())
    strategy = data.draw(strategies_for(graph, [Sync.NEEDED, Sync.HUB, Sync.BROADCAST]))
    early = data.draw(
        st.just(frozenset(graph.producers)) | st.frozensets(st.sampled_from([*graph.producers]))
    )
    plain, cut = both(problem_of(graph), strategy, early)
    assert_nobody_waits_for_more(plain, cut)
    inputs = inputs_of(graph)
    assert_same_answer(LocalRun(cut, graph).run(inputs), run_alone(model.SerializeToString(), inputs))


@QUICK
@given(st.data())
def test_convolutions_in_rows_or_columns_answer_the_same(data: st.DataObject) -> None:
    """Layouts that strategies choose, in which there is something to cut."""
    model = data.draw(models())
    graph = load_graph(model.SerializeToString())
    problem = among(graph, data.draw(st.integers(2, 4)))
    names = [device.name for device in problem.cluster.devices]
    strategy = rows(graph, names, data.draw(st.sampled_from(["height", "width"])))
    plain, cut = both(problem, strategy, frozenset(graph.producers))
    assert_nobody_waits_for_more(plain, cut)
    inputs = inputs_of(graph)
    assert_same_answer(LocalRun(cut, graph).run(inputs), run_alone(model.SerializeToString(), inputs))


@pytest.mark.parametrize(("name", "count"), NETWORKS)
def test_networks_answer_the_same(name: str, count: int) -> None:
    path = light(name)
    graph = load_graph(path)
    problem = among(graph, count)
    strategy = rows(graph, [device.name for device in problem.cluster.devices])
    plain, cut = both(problem, strategy, frozenset(graph.producers))
    assert_nobody_waits_for_more(plain, cut)
    for device, program in cut.programs.items():
        assert len(program.segments) > 1.1 * len(plain.programs[device].segments)
    inputs = dict(sample_inputs(graph))
    assert_same_answer(LocalRun(cut, graph).run(inputs), run_alone(path, inputs))


def chain() -> Graph:
    """Three convolutions over twelve rows."""
    from onnx import helper

    from tests.planner.small_models import model, random

    names = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node("Conv", [source, f"w{n}"], [made], made, pads=[1, 1, 1, 1])
        for n, (source, made) in enumerate(pairwise(names))
    ]
    weights = {f"w{n}": random(n, 4, 4, 3, 3) for n in range(3)}
    return load_graph(model(nodes, {"x": (1, 4, 12, 6)}, ["y"], weights))


def told(plan: Plan, device: str) -> list[str]:
    """The program in words; a segment by what it gives."""
    program = plan.programs[device]
    found = []
    for step in program.steps:
        if isinstance(step, Run):
            ports = program.segments[step.segment].outputs
            found.append(" ".join(f"{p.piece.tensor}{p.piece.region.spans[2][0][:]}" for p in ports))
        else:
            transfer = plan.transfers[step.transfer]
            what = "to" if isinstance(step, Send) else "from"
            end = transfer.target if isinstance(step, Send) else transfer.source
            found.append(f"{transfer.pieces[0].tensor} {what} {end or 'gateway'}")
    return found


def test_a_row_is_computed_and_sent_and_then_the_others() -> None:
    graph = chain()
    problem = among(graph, 2)
    plain, cut = both(problem, rows(graph, ["d0", "d1"]), frozenset("ab"))
    assert told(plain, "d0") == [
        *("x from gateway", "a(0, 6)", "a to d1", "a from d1", "b(0, 6)", "b to d1", "b from d1"),
        *("y(0, 6)", "y to gateway"),
    ]
    assert told(cut, "d0") == [
        *("x from gateway", "a(5, 6)", "a to d1", "a(0, 5)", "a from d1", "b(5, 6)", "b to d1", "b(0, 5)"),
        *("b from d1", "y(0, 6)", "y to gateway"),
    ]
    assert cut.programs["d0"].weight_bytes == plain.programs["d0"].weight_bytes


def test_each_neighbour_gets_its_own_row() -> None:
    graph = chain()
    _, cut = both(among(graph, 3), rows(graph, ["d0", "d1", "d2"]), frozenset("a"))
    made = [what for what in told(cut, "d1") if what.startswith("a")]
    assert made == ["a(4, 5)", "a to d0", "a(7, 8)", "a to d2", "a(5, 7)", "a from d0", "a from d2"]


def test_only_what_is_named_is_cut() -> None:
    graph = chain()
    problem, strategy = among(graph, 2), rows(graph, ["d0", "d1"])
    plain, cut = both(problem, strategy, frozenset(["x", "y", "no such tensor"]))
    assert cut == plain


def test_what_is_sent_for_the_most_part_is_not_cut() -> None:
    """One of two devices computes all that follows: the other has nothing else to do meanwhile."""
    graph = chain()
    strategy = rows(graph, ["d0", "d1"])
    layouts = {
        **strategy.layouts,
        "b": rows(graph, ["d0"]).layouts["b"],
        "y": rows(graph, ["d0"]).layouts["y"],
    }
    _, cut = both(among(graph, 2), replace(strategy, layouts=layouts), frozenset("ab"))
    assert told(cut, "d1") == ["x from gateway", "a(6, 12)", "a to d0"]


@pytest.mark.parametrize("model", ["squeezenet", *nightly("inception_v2")])
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_outline_with_borders_first_is_a_forecast(model: str, data: st.DataObject) -> None:
    study = studied(model)
    strategy = replace(drawn(data, study), early=frozenset(study.memo.graph.producers))
    outline, forecast = study.scorer.outline(strategy), study.scorer.forecast(strategy)
    assert outline.latency_s == pytest.approx(forecast.latency_s, rel=1e-9)
    assert outline.sent_bytes == forecast.sent_bytes


def test_what_nobody_asks_for_is_no_rest() -> None:
    """d1 computes rows that d0 has as well, and reads none of them itself."""
    graph = chain()
    whole, full = rows(graph, ["d0"]), graph.region_of("a")
    parts = {"d0": full.replace(2, span((0, 8))), "d1": full.replace(2, span((4, 12)))}
    strategy = replace(whole, layouts={**whole.layouts, "a": Layout(parts)})
    _, cut = both(among(graph, 2), strategy, frozenset("a"))
    assert told(cut, "d1") == ["x from gateway", "a(4, 12)", "a to d0"]
