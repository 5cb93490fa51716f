"""Routing: requests of any shape that the model takes, what they wait for, and what they are told in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgepart.agent.cluster.state.bindings import variant_name
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.events import BindingWanted
from edgepart.agent.serving import shape_routing
from edgepart.agent.serving.requester import Requester
from edgepart.agent.serving.shape_routing import ADVICE, MAX_WAITING, ShapeRouter
from edgepart.agent.wire.control import REFUSED, Standing, Version
from edgepart.agent.wire.inference import NO_EPOCH, DeployOptions, Epoch
from edgepart.planner.errors import EdgepartError, Infeasible, InternalError, RequestError, Unavailable
from edgepart.planner.plans.plan import Plan, ValueInfo
from tests.agent import handmade

FREE = ("n", None, "", "")
FIRST = (1, 3, 8, 8)
OUT = ValueInfo("y", "float", FIRST, FREE)


def plan_of(shape: tuple[int, ...]) -> Plan:
    """The gateway answers alone: the output is the input."""
    info = ValueInfo("x", "float", shape, FREE)
    return Plan("m", "single", {}, (), (info,), (info,), constant_outputs=("x",))


class Gateway:
    """A router whose cluster is the test."""

    def __init__(self, bindings: int = 8) -> None:
        self.told: list[BindingWanted] = []
        self.version = Version(1, "a")
        self.deployments = DeploymentMap()
        self.deployments.put("a", "net", "m", 1, DeployOptions(bindings=bindings))
        self.requester = Requester("a", lambda node, message, values: None)
        core: Any = SimpleNamespace(
            follower=SimpleNamespace(active=lambda name: SimpleNamespace(version=self.version)),
            deployments=self.deployments,
        )
        post: Any = self.told.append
        self.router = ShapeRouter(core, self.requester, post)
        self.requester.activate("net", Epoch(1, 1), plan_of(FIRST), {})

    def ask(self, rows: int, deadline_s: float = 20.0) -> asyncio.Task[Any]:
        inputs = {"x": np.full((rows, 3, 8, 8), rows, np.float32)}
        return asyncio.create_task(self.router.infer("net", inputs, deadline_s))

    def name(self, rows: int) -> str:
        return variant_name("net", self.version, {"x": (rows, 3, 8, 8)})

    def serve(self, rows: int, number: int = 2) -> None:
        self.requester.activate(self.name(rows), Epoch(1, number), plan_of((rows, 3, 8, 8)), {})

    def refuse(self, rows: int, error: str, kind: str) -> None:
        name = self.name(rows)
        self.router.refused(Standing(1, name, self.version, REFUSED, "", False, NO_EPOCH, (), error, kind))


def run(story: Callable[[Gateway], Awaitable[None]], **wanted: Any) -> None:
    async def live() -> None:
        gateway = Gateway(**wanted)
        try:
            async with asyncio.timeout(30):
                await story(gateway)
        finally:
            gateway.router.stop()

    asyncio.run(live())


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def failure(task: asyncio.Task[Any]) -> EdgepartError:
    with pytest.raises(EdgepartError) as caught:
        await task
    return caught.value


def test_a_new_shape_waits_until_it_is_served_and_the_first_does_not() -> None:
    async def story(gateway: Gateway) -> None:
        outputs, _ = await gateway.ask(1)
        assert outputs["x"].shape == FIRST
        waiting = [gateway.ask(2), gateway.ask(2)]
        await settled()
        assert gateway.told == [BindingWanted("net", gateway.version, {"x": (2, 3, 8, 8)})]  # once for both
        assert gateway.router.waiting_shapes("net") == [{"x": (2, 3, 8, 8)}]
        gateway.serve(2)
        for task in waiting:
            outputs, info = await task
            assert (outputs["x"] == 2).all() and info.epoch == Epoch(1, 2)
        assert gateway.router.waiting_shapes("net") == []
        outputs, _ = await gateway.ask(2)
        assert outputs["x"].shape == (2, 3, 8, 8)

    run(story)


def test_the_leader_is_told_again_and_again_while_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_routing, "REPEAT_S", 0.001)

    async def story(gateway: Gateway) -> None:
        task = gateway.ask(2)
        while len(gateway.told) < 5:
            await asyncio.sleep(0.001)
        gateway.serve(2)
        await task
        while gateway.router._wanted:  # then once more, as it was used, and no more
            await asyncio.sleep(0.001)
        told = len(gateway.told)
        gateway.requester.suspend(gateway.name(2))
        assert gateway.requester.counts().keys() == {"net"}
        again = gateway.ask(2)
        await settled()
        assert len(gateway.told) > told
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        assert gateway.router.waiting_shapes("net") == []
        assert gateway.requester.counts().keys() == {"net"}

    run(story)


def test_a_plan_that_is_given_up_is_waited_for_again() -> None:
    async def story(gateway: Gateway) -> None:
        gateway.serve(2)
        gateway.requester.suspend(gateway.name(2))
        task = gateway.ask(2)
        await settled()
        assert gateway.router.waiting_shapes("net")
        gateway.serve(2, number=3)
        assert (await task)[1].epoch == Epoch(1, 3)

    run(story)


def test_whoever_waits_too_long_is_told_what_to_do() -> None:
    async def story(gateway: Gateway) -> None:
        error = await failure(gateway.ask(2, deadline_s=0.01))
        assert isinstance(error, Unavailable)
        assert "x=2,3,8,8" in str(error) and ADVICE in str(error)
        assert gateway.router.waiting_shapes("net") == []

    run(story)


def test_too_many_new_shapes_at_once_are_turned_away() -> None:
    async def story(gateway: Gateway) -> None:
        waiting = [gateway.ask(rows) for rows in range(2, 2 + MAX_WAITING)]
        await settled()
        error = await failure(gateway.ask(100))
        assert isinstance(error, Unavailable) and f"{MAX_WAITING} other new shapes of 'net'" in str(error)
        more = gateway.ask(2)  # one that is waited for already
        gateway.serve(2)
        await waiting[0]
        await more
        later = gateway.ask(100)
        await settled()
        assert not later.done()
        for task in (*waiting, later):
            task.cancel()
        await asyncio.gather(*waiting, later, return_exceptions=True)
        assert gateway.router.waiting_shapes("net") == []

    run(story)


@pytest.mark.parametrize(
    ("kind", "raised", "remembered"),
    [
        ("ModelError", RequestError, True),
        ("UsageError", RequestError, True),
        ("InternalError", InternalError, True),
        ("Infeasible", Infeasible, True),
        ("Unavailable", Unavailable, False),
    ],
)
def test_a_refusal_reaches_all_that_wait_and_those_that_come(
    kind: str, raised: type[EdgepartError], remembered: bool
) -> None:
    async def story(gateway: Gateway) -> None:
        tasks, other = [gateway.ask(2), gateway.ask(2)], gateway.ask(3)
        await settled()
        gateway.refuse(2, "Reshape 'r' does not fit", kind)
        errors = [await failure(task) for task in tasks]
        for error in errors:
            assert isinstance(error, raised) and "'net'" in str(error) and "Reshape 'r'" in str(error)
        assert errors[0] is not errors[1]
        told = len(gateway.told)
        again = gateway.ask(2)
        await settled()
        assert again.done() == remembered
        assert len(gateway.told) == told + (not remembered)
        assert not other.done()  # nobody else is disturbed
        gateway.serve(3)
        await other
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)

    run(story)


def test_news_that_nobody_waits_for_are_dropped() -> None:
    async def story(gateway: Gateway) -> None:
        gateway.refuse(2, "does not fit", "ModelError")
        task = gateway.ask(2)
        await settled()
        assert not task.done()
        gateway.serve(2)
        await task

    run(story)


def test_deployed_again_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_routing, "REPEAT_S", 0.001)

    async def story(gateway: Gateway) -> None:
        task = gateway.ask(2)
        await settled()
        gateway.version = Version(2, "a")
        while gateway.told[-1].version != gateway.version:
            await asyncio.sleep(0.001)
        gateway.serve(2)
        assert (await task)[0]["x"].shape == (2, 3, 8, 8)

    run(story)


def test_undeployed_while_it_waits() -> None:
    async def story(gateway: Gateway) -> None:
        task = gateway.ask(2)
        await settled()
        gateway.requester.remove("net")
        assert "'net' was undeployed" in str(await failure(task))

    run(story)


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"x": np.zeros((2, 4, 8, 8), np.float32)}, r"expected x: float \[n, 3, any, any\]"),
        ({"x": np.zeros((2, 3, 8), np.float32)}, r"expected x: float \[n, 3, any, any\]"),
        ({"x": np.zeros((2, 3, 8, 8), np.float64)}, "of double"),
        ({"x": np.zeros((2, 3, 8, 8), np.float32), "z": np.zeros(1)}, "no input 'z'"),
        ({}, "input 'x' is missing"),
    ],
)
def test_what_does_not_fit_is_refused_before_anybody_plans(inputs: Any, complaint: str) -> None:
    async def story(gateway: Gateway) -> None:
        with pytest.raises(RequestError, match=complaint):
            await gateway.router.infer("net", inputs, 5.0)
        with pytest.raises(RequestError, match="has no output 'q'"):
            await gateway.router.infer("net", {"x": np.zeros((2, 3, 8, 8), np.float32)}, 5.0, ["q"])
        assert gateway.told == []

    run(story)


def test_a_deployment_for_its_first_shapes_only() -> None:
    async def story(gateway: Gateway) -> None:
        await gateway.ask(1)
        error = await failure(gateway.ask(2))
        assert isinstance(error, RequestError) and "x=1,3,8,8 only, not x=2,3,8,8" in str(error)
        assert gateway.told == []

    run(story, bindings=0)


def test_without_any_plan_it_is_as_before() -> None:
    async def story(gateway: Gateway) -> None:
        gateway.requester.remove("net")
        error = await failure(gateway.ask(2))
        assert isinstance(error, Unavailable) and "no plan of 'net' is active" in str(error)

    run(story)


def test_what_was_checked_is_also_what_runs() -> None:
    """Types and values of the other plan are checked as those of the first."""

    async def story(gateway: Gateway) -> None:
        text = replace(plan_of((1, 3, 8, 8)), inputs=(ValueInfo("x", "string", (1,), ("n",)),))
        gateway.requester.activate("net", Epoch(1, 5), replace(text, outputs=text.inputs), {})
        task = asyncio.create_task(gateway.router.infer("net", {"x": np.array(["a", "b"])}, 5.0))
        await settled()
        name = variant_name("net", gateway.version, {"x": (2,)})
        info = ValueInfo("x", "string", (2,), ("n",))
        plan = replace(text, inputs=(info,), outputs=(info,))
        gateway.requester.activate(name, Epoch(1, 6), plan, {})
        outputs, _ = await task
        assert outputs["x"].dtype == object and outputs["x"].tolist() == ["a", "b"]

    run(story)


def test_a_split_plan_for_a_new_shape_is_told_to_its_devices() -> None:
    """The parts go under the variant's name, so that devices know whose plan they run."""
    sent: list[tuple[str, str]] = []

    async def story() -> None:
        gateway = Gateway()
        gateway.requester = Requester(
            "a", lambda node, message, values: sent.append((node, message.deployment))
        )
        gateway.router._requester = gateway.requester
        plan = handmade.split_plan()
        shape = plan.inputs[0].shape
        assert shape is not None
        open_axes = ("",) * len(shape)
        first = replace(plan_of(FIRST), inputs=(ValueInfo("x", "float", (1,) * len(shape), open_axes),))
        gateway.requester.activate("net", Epoch(1, 1), replace(first, outputs=plan.outputs[:0]), {})
        task = asyncio.create_task(gateway.router.infer("net", {"x": np.zeros(shape, np.float32)}, 5.0))
        await settled()
        name = variant_name("net", gateway.version, {"x": shape})
        gateway.requester.activate(name, Epoch(1, 2), plan, handmade.NODES)
        await settled()
        assert sent and {deployment for _, deployment in sent} == {name}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gateway.router.stop()

    asyncio.run(story())


def test_a_plan_that_somebody_asks_about_is_wanted_until_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_routing, "REPEAT_S", 0.01)

    async def story(gateway: Gateway) -> None:
        rows = {"x": np.zeros((4, 3, 8, 8), np.float32)}
        assert gateway.router.plan_for("net", rows) is None
        assert [wish.shapes for wish in gateway.told] == [{"x": (4, 3, 8, 8)}]
        assert not gateway.router.waiting_shapes("net"), "no request waits"
        while gateway.router._wanted:
            await asyncio.sleep(0.001)
        assert len(gateway.told) == 2  # Once more, and then nobody asked.
        gateway.serve(4)
        plan = gateway.name(4), Epoch(1, 2)
        assert gateway.router.plan_for("net", rows) == plan and gateway.router.serves(plan)
        gateway.serve(4, number=3)
        assert not gateway.router.serves(plan)
        first = {"x": np.zeros(FIRST, np.float32)}
        assert gateway.router.plan_for("net", first) == ("net", Epoch(1, 1))
        assert gateway.router.plan_for("other", first) is None

    run(story)


def test_a_plan_that_is_refused_is_not_wanted() -> None:
    async def story(gateway: Gateway) -> None:
        rows = {"x": np.zeros((4, 3, 8, 8), np.float32)}
        assert gateway.router.plan_for("net", rows) is None and len(gateway.told) == 1
        gateway.refuse(4, "no room", "Infeasible")
        assert gateway.router.plan_for("net", rows) is None and len(gateway.told) == 1
        assert gateway.router.plan_for("net", {"x": np.zeros((4, 3, 8), np.float32)}) is None

    run(story)
    run(story_without_variants, bindings=0)


async def story_without_variants(gateway: Gateway) -> None:
    assert gateway.router.plan_for("net", {"x": np.zeros((4, 3, 8, 8), np.float32)}) is None
    assert not gateway.told
