"""A plan is tried: what its devices answer against what the model answers, and what is said where that cannot be known."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgepart.agent.cluster.state.events import RIGHT, SUSPECT, UNTRIED, WRONG, PlanTried, TryPlan
from edgepart.agent.serving.loaded_plans import HeldPlan
from edgepart.agent.verify.rounding_error import sample_inputs_for
from edgepart.agent.verify.tryout import DEADLINE_S, LOST_S, Tryout
from edgepart.agent.wire.inference import NO_EPOCH, Epoch
from edgepart.planner.errors import RequestError
from edgepart.planner.plans.plan import KeptState, Plan, ValueInfo
from tests.agent import handmade
from tests.agent.serving.test_requester import E1, E2, Cluster, in_cluster, on_a_alone

MODEL = "m" * 64
ORDER = TryPlan("m", E1, MODEL, 1000, None, NO_EPOCH)
MUCH, NOTHING = 1 << 40, 0


class Judge:
    """Says what the model answers, off by so much; and by `sways` more to any inputs after the first."""

    def __init__(self, off: float = 0.0, fault: str = "", sways: float = 0.0) -> None:
        self.off, self.fault, self.sways, self.asked = off, fault, sways, 0

    def answer(
        self,
        model: str,
        steps: Sequence[Mapping[str, Any]],
        memory_bytes: int,
        within_s: float,
        states: Sequence[KeptState],
    ) -> dict[str, Any]:
        self.asked += 1
        if self.fault:
            raise RequestError(self.fault)
        off = self.off + (self.sways if self.asked > 1 else 0)
        return {name: value + off for name, value in handmade.expected(steps[-1]["x"]).items()}


def tried(
    order: TryPlan, judge: Judge, plans: Mapping[Epoch, Plan], room_bytes: int = MUCH, spoil: bool = False
) -> PlanTried:
    """What comes of it where devices hold these plans; `spoil`: one of them gives what is no number."""
    found: list[PlanTried] = []

    async def story(cluster: Cluster) -> None:
        for epoch, plan in plans.items():
            cluster.install(epoch, plan)
        cluster.gateway.remove("m")  # requests of users are on none of them
        held = {epoch: HeldPlan(plan, handmade.NODES) for epoch, plan in plans.items()}
        if spoil:
            run = cluster.gateway.run

            async def spoilt(*arguments: Any, **how: Any) -> Any:
                outputs, info = await run(*arguments, **how)
                return {name: np.full_like(value, np.nan) for name, value in outputs.items()}, info

            cluster.gateway.run = spoilt  # type: ignore[method-assign]
        tryout = Tryout(cluster.gateway, lambda _, epoch: held.get(epoch), judge, lambda: room_bytes)
        found.append(await tryout(order))
        assert not cluster.gateway.counts()

    in_cluster(story)
    return found[0]


def test_the_same_answers_are_right_and_others_wrong() -> None:
    plans = {E1: handmade.split_plan()}
    assert tried(ORDER, Judge(), plans) == PlanTried("m", E1, RIGHT)
    wrong = tried(ORDER, Judge(off=0.1), plans)
    assert wrong.verdict == WRONG and "are not the model's" in wrong.text and "differs by" in wrong.text


def test_what_one_rounding_of_the_inputs_changes_is_not_held_against_a_plan() -> None:
    plans = {E1: handmade.split_plan()}
    steady, swaying = Judge(off=0.1), Judge(off=0.1, sways=0.2)
    assert (tried(ORDER, steady, plans).verdict, steady.asked) == (WRONG, 2)
    assert (tried(ORDER, swaying, plans).verdict, swaying.asked) == (RIGHT, 2)
    assert tried(ORDER, Judge(off=5.0, sways=0.2), plans).verdict == WRONG
    chance = tried(ORDER, Judge(off=0.1, sways=90.0), plans)
    assert chance.verdict == UNTRIED and "differ by one rounding" in chance.text
    trusted = replace(ORDER, trusted=E2)  # which the plan that serves is asked for, too
    assert tried(trusted, steady, {**plans, E2: on_a_alone()}).verdict == RIGHT


def test_where_nobody_knows_better_numbers_of_the_right_shape_do() -> None:
    judge, plans = Judge(off=0.1), {E1: handmade.split_plan()}
    assert tried(ORDER, judge, plans, NOTHING).verdict == RIGHT
    assert tried(ORDER, judge, plans, NOTHING, spoil=True).verdict == SUSPECT
    assert judge.asked == 0


def test_a_plan_that_does_not_bring_all_outputs_is_wrong() -> None:
    async def story(cluster: Cluster) -> None:
        plan = handmade.split_plan()
        short = replace(plan, transfers=tuple(t for t in plan.transfers if t.number != 8))
        tryout = Tryout(cluster.gateway, lambda *_: HeldPlan(short, handmade.NODES), Judge(), lambda: MUCH)
        found = await tryout(ORDER)
        assert found.verdict == WRONG and "does not bring all of output" in found.text

    in_cluster(story)


def test_a_plan_that_serves_and_is_right_is_what_others_are_held_against() -> None:
    judge = Judge(off=9.0)
    order = replace(ORDER, trusted=E2)
    plans = {E1: handmade.split_plan(), E2: on_a_alone()}
    assert tried(order, judge, plans).verdict == RIGHT and judge.asked == 0
    assert tried(replace(ORDER, trusted=Epoch(9, 9)), judge, plans).verdict == WRONG  # which is not here


def test_the_model_is_asked_once_for_all_plans_but_again_before_one_is_called_wrong() -> None:
    async def story(cluster: Cluster) -> None:
        plan = handmade.split_plan()
        cluster.install(E1, plan)
        judge = Judge()
        tryout = Tryout(cluster.gateway, lambda *_: HeldPlan(plan, handmade.NODES), judge, lambda: MUCH)
        assert [(await tryout(ORDER)).verdict for _ in range(3)] == [RIGHT] * 3
        assert judge.asked == 1
        assert (await tryout(replace(ORDER, model="o" * 64))).verdict == RIGHT
        assert judge.asked == 2  # Another model answers otherwise.

        judge.off = 0.1
        assert (await tryout(replace(ORDER, model="w" * 64))).verdict == WRONG
        judge.off = 0.0
        assert (await tryout(replace(ORDER, model="w" * 64))).verdict == RIGHT

    in_cluster(story)


def test_a_serving_plan_is_asked_once_for_all_others() -> None:
    asked: list[str] = []

    async def story(cluster: Cluster) -> None:
        plans = {E1: handmade.split_plan(), E2: on_a_alone()}
        for epoch, plan in plans.items():
            cluster.install(epoch, plan)
        run = cluster.gateway.run

        async def noted(*arguments: Any, **how: Any) -> Any:
            asked.append(arguments[0])
            return await run(*arguments, **how)

        cluster.gateway.run = noted  # type: ignore[method-assign]
        held = {epoch: HeldPlan(plan, handmade.NODES) for epoch, plan in plans.items()}
        tryout = Tryout(cluster.gateway, lambda _, epoch: held.get(epoch), Judge(off=9.0), lambda: MUCH)
        for _ in range(2):
            assert (await tryout(replace(ORDER, trusted=E2))).verdict == RIGHT

    in_cluster(story)
    assert len(asked) == 2 + 1 + 1  # Twice what serves, as its outputs may be random; and each plan.


def test_no_answer_is_awaited_for_long_from_a_plan_that_has_lost_a_device() -> None:
    waits: list[float] = []

    async def story(cluster: Cluster) -> None:
        plan = handmade.split_plan()
        cluster.install(E1, plan)
        run = cluster.gateway.run

        async def noted(*arguments: Any, **how: Any) -> Any:
            waits.append(how["again_s"])
            return await run(*arguments, **how)

        cluster.gateway.run = noted  # type: ignore[method-assign]
        tryout = Tryout(cluster.gateway, lambda *_: HeldPlan(plan, handmade.NODES), Judge(), lambda: MUCH)
        assert (await tryout(ORDER)).verdict == RIGHT

    in_cluster(story)
    assert waits == [LOST_S] and LOST_S < DEADLINE_S / 10


def test_two_versions_can_be_tried_at_once() -> None:
    """As when a deployment is changed while its last version is still tried: requests follow the newest plan of a name."""

    async def story(cluster: Cluster) -> None:
        plans = {E1: handmade.split_plan(), E2: on_a_alone()}
        for epoch, plan in plans.items():
            cluster.install(epoch, plan)
        taken: list[tuple[str, Epoch]] = []
        activate = cluster.gateway.activate

        def noted(name: str, epoch: Epoch, *plan: Any) -> None:
            taken.append((name, epoch))
            activate(name, epoch, *plan)

        cluster.gateway.activate = noted  # type: ignore[method-assign, assignment]
        held = {epoch: HeldPlan(plan, handmade.NODES) for epoch, plan in plans.items()}
        tryout = Tryout(cluster.gateway, lambda _, epoch: held.get(epoch), Judge(), lambda: MUCH)
        found = await asyncio.gather(tryout(replace(ORDER, epoch=E2)), tryout(ORDER))
        assert [one.verdict for one in found] == [RIGHT, RIGHT], found
        names = {epoch: name for name, epoch in taken}
        assert set(names) == {E1, E2} and names[E1] != names[E2]

    in_cluster(story)


def test_what_the_model_does_not_take_says_nothing_of_the_plan() -> None:
    found = tried(ORDER, Judge(fault="an index is out of range"), {E1: handmade.split_plan()})
    assert (found.verdict, found.text) == (UNTRIED, "an index is out of range")
    plan = handmade.split_plan()
    odd = replace(plan, inputs=(*plan.inputs, ValueInfo("s", "sequence", None)))
    tryout = Tryout(None, lambda *_: HeldPlan(odd, {}), Judge(), lambda: MUCH)  # type: ignore[arg-type]
    assert "no shape" in asyncio.run(tryout(ORDER)).text
    tryout = Tryout(None, lambda *_: None, Judge(), lambda: MUCH)  # type: ignore[arg-type]
    assert asyncio.run(tryout(ORDER)).verdict == UNTRIED


def test_made_up_inputs_are_the_same_each_time() -> None:
    one, two = (sample_inputs_for(handmade.split_plan()) for _ in range(2))
    assert all((one[name] == two[name]).all() for name in one)
