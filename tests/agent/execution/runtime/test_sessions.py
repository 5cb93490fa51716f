"""Sessions: sharing, letting go, and segments that ONNX Runtime refuses."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from edgepart.agent.execution.runtime.sessions import PreparedProgram, Sessions
from edgepart.planner.errors import InternalError
from edgepart.planner.plans.plan import Program, WeightRef
from edgepart.planner.region import Array
from tests.agent import handmade
from tests.agent.execution.runtime.one_segment import ports


class Store:
    """Counts how often each weight is read."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def __call__(self, ref: WeightRef) -> Array:
        self.reads.append(ref.name)
        array = handmade.read_weight(ref)
        array.flags.writeable = False
        return array


def test_equal_segments_and_weights_are_held_once_and_let_go_with_the_last_program() -> None:
    store = Store()
    sessions = Sessions(1, store)
    plan = handmade.split_plan()
    first = sessions.prepare(plan.programs["a"])
    assert sessions.held == (2, 2)
    second = sessions.prepare(plan.programs["a"])
    assert [one.session for one in first.loaded] == [one.session for one in second.loaded]
    third = sessions.prepare(plan.programs["b"])
    assert sessions.held == (4, 2)
    assert sorted(store.reads) == ["w1", "w2."]
    sessions.release(first)
    sessions.release(third)
    assert sessions.held == (2, 2)
    sessions.release(second)
    assert sessions.held == (0, 0)
    (out,) = first.run(0, [handmade.request_input(1)[:, :, :5]])
    assert out.shape == (1, 2, 4, 6)  # a released program still runs what is under way


def test_letting_go_waits_for_nobody_and_is_not_forgotten() -> None:
    plan = handmade.split_plan()
    first: list[PreparedProgram] = []
    rested: list[float] = []

    def rest(took_s: float) -> None:
        """Called in the middle of a preparation."""
        rested.append(took_s)
        if first:
            sessions.release(first.pop())

    sessions = Sessions(1, handmade.read_weight, rest=rest)
    first.append(sessions.prepare(plan.programs["a"]))
    rested.clear()
    second = sessions.prepare(plan.programs["b"])
    assert sessions.held == (2, 2)
    assert len(rested) == len(plan.programs["b"].segments)
    assert min(rested) >= 0
    sessions.release(second)
    assert sessions.held == (0, 0)


def test_a_segment_computes_with_its_external_weights() -> None:
    sessions = Sessions(1, handmade.read_weight)
    prepared = sessions.prepare(handmade.split_plan().programs["a"])
    x = handmade.request_input(3)
    (c1,) = prepared.run(0, [x[:, :, :5]])
    expected = handmade.conv3x3(x, handmade.weight("w1"))[:, :, :4]
    np.testing.assert_allclose(c1, expected, rtol=1e-4, atol=1e-5)
    assert prepared.dtypes == {name: np.dtype("float32") for name in ("x", "c1", "y")}


def test_a_refused_segment_is_named_by_its_operators_and_nothing_is_held() -> None:
    good = handmade.split_plan().programs["a"].segments[0]
    bad = handmade.segment([helper.make_node("Telepathy", ["x"], ["y"])], ports("x"), ports("y"))
    sessions = Sessions(1, handmade.read_weight)
    with pytest.raises(InternalError, match="Telepathy_0"):
        sessions.prepare(Program("a", (), (good, bad), 0, 0))
    assert sessions.held == (0, 0)
