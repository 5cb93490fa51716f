"""Relays: a schedule whose messages are passed on computes the same segments from the same values, and comes to an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.agent.inprocess import InProcess
from edgepart.planner import routes
from edgepart.planner.cluster import Cluster, Device, Link
from edgepart.planner.graph import Graph
from edgepart.planner.layout import Problem, Strategy, Sync
from edgepart.planner.lower import make_plan
from edgepart.planner.model import load_graph
from edgepart.planner.plan import GATEWAY, Plan
from edgepart.planner.plan_rules import broken_rules, check
from edgepart.planner.routes import Shape
from edgepart.planner.simulate import simulate
from tests.planner.random_plans import inputs_of, models, problem_of, rows, strategies_for

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """So that small tensors are cut as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "LEAST_BYTES", 8)
        yield


def both(problem: Problem, strategy: Strategy, relays: dict[str, Shape]) -> tuple[Plan, Plan]:
    """Straight and with relays."""
    plain = make_plan(problem, strategy, model_digest="m")
    passed = make_plan(problem, replace(strategy, relays=relays), model_digest="m")
    return plain, check(passed, problem.graph)


def assert_same_work(plain: Plan, passed: Plan) -> None:
    """The same segments, bit for bit, of the same pieces."""
    assert plain.programs.keys() == passed.programs.keys()
    for device, program in plain.programs.items():
        assert program.segments == passed.programs[device].segments


def assert_same_answer(plain: Plan, passed: Plan, graph: Graph) -> None:
    inputs = inputs_of(graph)
    expected = InProcess(plain, graph).run(inputs)
    found = InProcess(passed, graph).run(inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@QUICK
@given(st.data())
def test_any_plan_answers_the_same_with_relays(data: st.DataObject) -> None:
    model = data.draw(models())
    graph = load_graph(model.SerializeToString())
    strategy = data.draw(strategies_for(graph, [Sync.NEEDED, Sync.HUB, Sync.BROADCAST]))
    if data.draw(st.booleans()):
        strategy = replace(strategy, early=frozenset(graph.producers))
    names = [*graph.inputs, *graph.producers]
    shapes = data.draw(st.sampled_from([[one] for one in Shape] + [list(Shape)]))
    relays = {name: data.draw(st.sampled_from(shapes)) for name in names}
    plain, passed = both(problem_of(graph), strategy, relays)
    assert_same_work(plain, passed)
    assert_same_answer(plain, passed, graph)
