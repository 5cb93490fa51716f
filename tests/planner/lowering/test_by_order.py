"""Devices that take their work in an order of somebody's: plans stay plans, answers the same, and what is sent is sent
as soon as it is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.layout.strategy import Problem, Strategy, Sync
from edgepart.planner.lowering.by_order import order_operators
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Run, Send
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import simulate
from tests.planner.placing.models import branches
from tests.planner.random_plans import NAMES, inputs_of, models, problem_of, strategies_for


@st.composite
def ordered(draw: st.DrawFn, graph: Graph) -> Strategy:
    """Any layouts, and any order of some layers."""
    strategy = draw(strategies_for(graph, [Sync.NEEDED]))
    layers = sorted(set(strategy.layers.values()))
    ranks = draw(st.dictionaries(st.sampled_from(layers), st.integers(0, 9).map(float), min_size=1))
    return replace(strategy, order=ranks)


@settings(max_examples=40)
@given(models(), st.data())
def test_any_order_gives_the_same_answer(model: onnx.ModelProto, data: st.DataObject) -> None:
    data_bytes = model.SerializeToString()
    graph = load_graph(data_bytes)
    problem = problem_of(graph)
    plan = check_plan(make_plan(problem, data.draw(ordered(graph)), model_digest="m"), graph)
    simulate(plan, problem.cluster, problem.gateway)
    inputs = inputs_of(graph)
    found = LocalRun(plan, graph).run(inputs)
    for name, value in run_alone(data_bytes, inputs).items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4 * max(1e-6, np.abs(value).max()))


@given(models(), st.data())
def test_an_order_is_one_in_which_operators_can_run(model: onnx.ModelProto, data: st.DataObject) -> None:
    graph = load_graph(model.SerializeToString())
    strategy = data.draw(ordered(graph))
    found = order_operators(graph, strategy.order, strategy.layers)
    place = {name: n for n, name in enumerate(found)}
    assert sorted(found) == sorted(op.name for op in graph.operators)
    for op in graph.operators:
        for name in graph.reads(op):
            if name in graph.producers:
                assert place[graph.producers[name].name] < place[op.name]


def by_branch(graph: Graph) -> tuple[Study, Strategy, Strategy]:
    """The right branch and what joins the two on another device, by levels and in the model's order."""
    study = Study(Problem(graph, problem_of(graph).cluster, NAMES[0]))
    choices = study.candidates.keep_whole(NAMES[0])
    for layer in study.memo.layers:
        if not any(op.name.startswith(("stem", "left")) for op in layer.operators):
            choices[layer.number] = study.candidates.keep_whole(NAMES[1])[layer.number]
    strategy = study.candidates.make("branches", choices, "")
    return study, strategy, replace(strategy, order={la.number: float(la.number) for la in study.memo.layers})


def test_what_others_wait_for_is_sent_before_the_rest() -> None:
    """By levels the stem and the left branch are one segment, as both are sent, and the right branch waits for both."""
    study, levels, ordered = by_branch(load_graph(branches()))
    for strategy, first in ((levels, {"stem", "left1", "left2"}), (ordered, {"stem"})):
        program = make_plan(study.memo.problem, strategy, model_digest="m", cost=study.memo.cost).programs[
            NAMES[0]
        ]
        at = next(n for n, step in enumerate(program.steps) if isinstance(step, Send))
        ran = {
            name
            for step in program.steps[:at]
            if isinstance(step, Run)
            for name in program.segments[step.segment].operators
        }
        assert ran & {"stem", "left1", "left2", "last"} == first
    assert study.scorer.forecast(ordered).latency_s < study.scorer.forecast(levels).latency_s


def test_sketches_of_chains_follow_the_same_order() -> None:
    study, _, ordered = by_branch(load_graph(branches()))
    for order in (ordered.order, {number: -rank for number, rank in ordered.order.items()}):
        strategy = replace(ordered, order=order)
        assert study.scorer.outline(strategy).latency_s == study.scorer.forecast(strategy).latency_s
