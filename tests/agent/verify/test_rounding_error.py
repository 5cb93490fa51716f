"""Comparison: two requests for each plan that rounds, and what is said of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgepart.agent.cluster.state.events import RoundingMeasured
from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.verify.rounding_error import RoundingComparison, sample_inputs_for
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.errors import RequestError, UsageError
from edgepart.planner.plans.plan import Plan, ValueInfo
from tests.agent import handmade
from tests.agent.wire.test_reduced_precision import rounding_plan

ONE, TWO = Epoch(1, 1), Epoch(1, 2)


class Cluster:
    """Answers with ones; rounded, one of them is off."""

    def __init__(self, off: float = 0.25, fails: bool = False, moves: bool = False) -> None:
        self.off, self.fails, self.moves = off, fails, moves
        self.asked: list[tuple[str, bool]] = []
        self.told: list[RoundingMeasured] = []

    async def run(
        self,
        deployment: str,
        inputs: dict[str, Any],
        deadline_s: float,
        outputs: tuple[str, ...],
        *,
        exact: bool = False,
    ) -> tuple[dict[str, Any], AnswerInfo]:
        self.asked.append((deployment, exact))
        if self.fails:
            raise RequestError("an index is out of range")
        found = np.ones(4, np.float32)
        found[0] += 0 if exact else self.off
        return dict.fromkeys(outputs, found), AnswerInfo(TWO if self.moves and not exact else ONE, 0, "")

    def watched(self, *plans: tuple[str, Epoch, Plan]) -> None:
        """After several looks at these plans."""

        async def watch() -> None:
            looks = 0
            done = asyncio.Event()

            def leading() -> list[tuple[str, Epoch, Plan]]:
                nonlocal looks
                looks += 1
                if looks == 3:
                    done.set()
                return list(plans)

            task = asyncio.create_task(RoundingComparison(self.run, self.told.append).watch(leading))
            await asyncio.wait_for(done.wait(), 30)
            task.cancel()

        asyncio.run(watch())


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepart.agent.verify.rounding_error.LOOK_S", 0.0)


def test_each_plan_that_rounds_is_compared_once() -> None:
    cluster, plan = Cluster(), rounding_plan("int8")
    cluster.watched(("net", ONE, plan), ("plain", ONE, handmade.split_plan()))
    assert cluster.asked == 6 * [("net", True), ("net", False)]
    text = "rounded to int8 between devices, outputs are off by up to 2.5e-01 of their largest magnitude"
    assert cluster.told == [RoundingMeasured("net", ONE, f"{text} (6 made-up inputs)")]


def test_two_inputs_are_enough_where_requests_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepart.agent.verify.rounding_error.ENOUGH_S", 0.0)
    cluster = Cluster()
    cluster.watched(("net", ONE, rounding_plan("int8")))
    assert cluster.asked == 2 * [("net", True), ("net", False)]


def test_what_cannot_be_compared_is_said_once() -> None:
    cluster = Cluster(fails=True)
    cluster.watched(("net", ONE, rounding_plan("int8")))
    assert [one.text for one in cluster.told] == [
        "how far answers are off is not known: an index is out of range"
    ]
    cluster = Cluster(off=float("nan"))
    cluster.watched(("net", ONE, rounding_plan("float16")))
    assert "outputs cannot be compared" in cluster.told[0].text


def test_answers_of_two_plans_say_nothing_of_one() -> None:
    cluster = Cluster(moves=True)
    cluster.watched(("net", ONE, rounding_plan("int8")))
    assert cluster.asked and cluster.told == []


def test_inputs_are_made_up_for_any_plan() -> None:
    plan = handmade.split_plan()
    whole = replace(plan, inputs=(*plan.inputs, ValueInfo("n", "int64", (2,))))
    made = sample_inputs_for(whole)
    assert made["x"].dtype == np.float32 and made["x"].shape == plan.inputs[0].shape
    assert made["n"].tolist() == [1, 1]
    assert 0 <= made["x"].min() < made["x"].max() <= 1 and sample_inputs_for(whole, seed=1)["x"].min() < 0
    with pytest.raises(UsageError, match="no shape"):
        sample_inputs_for(replace(plan, inputs=(ValueInfo("s", "sequence", None),)))
