"""A plan's bytes: there and back, the same for equal plans, and FrameError for anything else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.errors import FrameError
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.plan import Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from tests.planner.lowering.test_lower import chain_model
from tests.planner.random_plans import NAMES, problem_of, rows


@pytest.fixture(scope="module")
def plan() -> Plan:
    return made()


def made() -> Plan:
    graph = load_graph(chain_model(channels=16))
    return make_plan(problem_of(graph), rows(graph, NAMES), model_digest="m")


def test_there_and_back(plan: Plan) -> None:
    again = plan_from_bytes(plan_to_bytes(plan))
    assert again == plan
    assert plan_to_bytes(again) == plan_to_bytes(plan)


def test_equal_plans_have_equal_bytes_and_others_have_not(plan: Plan) -> None:
    assert plan_to_bytes(made()) == plan_to_bytes(plan)
    shuffled = replace(plan, programs=dict(reversed(list(plan.programs.items()))))
    assert plan_to_bytes(shuffled) == plan_to_bytes(plan)
    assert plan_to_bytes(replace(plan, why="because")) != plan_to_bytes(plan)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_plan(data: bytes) -> None:
    with pytest.raises(FrameError, match="not a plan"):
        plan_from_bytes(data)


documents: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_a_plan_with_one_field_spoilt_is_refused_or_still_a_plan(data: st.DataObject) -> None:
    document = msgpack.unpackb(plan_to_bytes(made()))
    place = document
    while isinstance(place, dict | list) and len(place):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(documents)
            break
        place = place[key]
    try:
        plan = plan_from_bytes(msgpack.packb(document))
        assert plan_from_bytes(plan_to_bytes(plan)) == plan
    except FrameError as error:
        assert "not a plan" in str(error)


@pytest.mark.parametrize("field", ["model_digest", "strategy", "why", "predicted_latency_s", "transfers"])
@pytest.mark.parametrize("value", [None, [["x"]], {"a": 1}])
def test_a_field_of_another_type_is_refused(plan: Plan, field: str, value: Any) -> None:
    document = msgpack.unpackb(plan_to_bytes(plan)) | {field: value}
    with pytest.raises(FrameError, match="not a plan"):
        plan_from_bytes(msgpack.packb(document))


def test_a_wrong_type_deep_inside_is_refused(plan: Plan) -> None:
    document = msgpack.unpackb(plan_to_bytes(plan))
    document["programs"][0]["segments"][0]["inputs"][0]["piece"]["region"][2] = ["a", "b"]
    with pytest.raises(FrameError, match=r"Interval\.start"):
        plan_from_bytes(msgpack.packb(document))
    document = msgpack.unpackb(plan_to_bytes(plan))
    document["inputs"][0]["shape"] = ["a"]
    with pytest.raises(FrameError, match=r"ValueInfo\.shape"):
        plan_from_bytes(msgpack.packb(document))


def test_truncated_and_trailing_bytes_are_refused(plan: Plan) -> None:
    data = plan_to_bytes(plan)
    for spoilt in (data[:-1], data[: len(data) // 2], data + b"\0", b""):
        with pytest.raises(FrameError):
            plan_from_bytes(spoilt)
