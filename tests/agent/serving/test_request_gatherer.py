"""The gatherer over a router that the test writes, in virtual time: who is run with whom, and what becomes of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from edgepart.agent.serving.request_gatherer import RequestGatherer
from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.verify.same_answer import differences
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.planner.errors import (
    CrashError,
    DeadlinePassed,
    EdgepartError,
    InternalError,
    RunError,
    Unavailable,
)
from tests.agent.serving.virtual_time import run_virtually

ROWS = 4
OPTIONS = DeployOptions(batch_rows=ROWS, batch_delay_s=0.01)
RUN_S = 0.1
EPOCH = Epoch(1, 2)


class DoublingRouter:
    """Doubles each value after RUN_S seconds. A value of 13 fails, wherever it is."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        """The rows of each run, in order."""
        self.planned = True
        self.error: type[EdgepartError] = RunError
        self.wrong_batches = self.failing_batches = self.short_batches = self.faulty_batches = False
        self.gone_in_run = False

    async def infer(
        self, deployment: str, inputs: Mapping[str, Any], deadline_s: float, outputs: Sequence[str] = ()
    ) -> tuple[dict[str, Any], AnswerInfo]:
        x = inputs["x"]
        is_batch = len(x) == ROWS
        self.sizes.append(len(x))
        if is_batch and self.gone_in_run:
            self.planned = False
            await asyncio.sleep(1000)
        if deadline_s < RUN_S:
            await asyncio.sleep(deadline_s)
            raise DeadlinePassed("too slow")
        await asyncio.sleep(RUN_S)
        if is_batch and self.faulty_batches:
            raise KeyError("a fault")
        if (x == 13).any() or (is_batch and self.failing_batches):
            raise self.error("13 fails")
        y = x * 2 + (1 if is_batch and self.wrong_batches else 0)
        values = {"y": y[:1] if is_batch and self.short_batches else y, "z": -y}
        if unknown := set(outputs) - values.keys():
            raise RunError(f"no {unknown}")
        return {name: values[name] for name in outputs or values}, AnswerInfo(EPOCH, 0, "single")

    def plan_for(self, deployment: str, inputs: Mapping[str, Any]) -> tuple[str, Epoch] | None:
        assert inputs["x"].shape[0] == ROWS
        return ("net@4", EPOCH) if self.planned else None

    def serves(self, plan: tuple[str, Epoch]) -> bool:
        return plan == ("net@4", EPOCH)


class Gathered:
    def __init__(self) -> None:
        self.router = DoublingRouter()
        self.gatherer = RequestGatherer(self.router, differences)

    async def ask(
        self, *values: float, deadline_s: float = 60.0, outputs: Sequence[str] = (), options: Any = OPTIONS
    ) -> Any:
        """A request of a row for each value."""
        inputs = {"x": np.array(values, np.float32)[:, None] * np.ones((1, 2), np.float32)}
        return await self.gatherer.infer("net", options, inputs, deadline_s, outputs)

    async def all(self, *values: float) -> list[Any]:
        return await asyncio.gather(*(self.ask(value) for value in values), return_exceptions=True)

    async def judged(self) -> Gathered:
        """Let the plan be found right."""
        await self.all(1, 2)
        self.router.sizes.clear()
        return self


def is_right(answer: Any, value: float) -> bool:
    return not isinstance(answer, Exception) and bool((answer[0]["y"] == 2 * value).all())


def test_requests_that_wait_at_once_are_one_run_each_with_its_own_rows() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        answers = await asyncio.gather(
            gathered.ask(1), gathered.ask(2, 3), gathered.ask(4, outputs=["z"]), gathered.ask(5)
        )
        assert gathered.router.sizes == [ROWS, 1]
        assert answers[1][0]["y"].tolist() == [[4, 4], [6, 6]]
        assert answers[2][0].keys() == {"z"} and answers[2][0]["z"].tolist() == [[-8, -8]]
        assert is_right(answers[0], 1) and is_right(answers[3], 5)
        assert [info.runs for _, info in answers] == [1, 0, 0, 1]

    run_virtually(story())


def test_fewer_requests_are_padded_and_one_alone_is_not() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        began = asyncio.get_running_loop().time()
        answers = await gathered.all(1, 2)
        assert gathered.router.sizes == [ROWS] and is_right(answers[0], 1) and is_right(answers[1], 2)
        assert asyncio.get_running_loop().time() - began == pytest.approx(OPTIONS.batch_delay_s + RUN_S)
        assert answers[0][1].waited_s == pytest.approx(OPTIONS.batch_delay_s)
        assert is_right(await gathered.ask(7), 7)
        assert gathered.router.sizes == [ROWS, 1]

    run_virtually(story())


def test_requests_gather_while_a_run_is_under_way() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        first = asyncio.create_task(gathered.ask(1))
        await asyncio.sleep(0.05)
        late = []
        for value in (2, 3, 4):
            late.append(asyncio.create_task(gathered.ask(value)))
            await asyncio.sleep(0.015)
        assert (
            is_right(await first, 1)
            and [is_right(await one, n) for n, one in enumerate(late, 2)] == [True] * 3
        )
        assert gathered.router.sizes == [1, ROWS]

    run_virtually(story())


def test_without_a_plan_for_all_rows_requests_run_one_by_one_at_once() -> None:
    async def story() -> None:
        gathered = Gathered()
        gathered.router.planned = False
        answers = await gathered.all(1, 2, 3)
        assert gathered.router.sizes == [1, 1, 1] and all(map(is_right, answers, (1, 2, 3)))
        assert asyncio.get_running_loop().time() == pytest.approx(RUN_S)

    run_virtually(story())


@pytest.mark.parametrize("values", [(1, 2, 3, 4), (1, 2, 3, 4, 5), ()])
def test_requests_of_many_rows_or_none_are_not_gathered(values: tuple[float, ...]) -> None:
    async def story() -> None:
        gathered = Gathered()
        await asyncio.gather(gathered.ask(*values), gathered.ask(*values))
        assert gathered.router.sizes == [len(values)] * 2

    run_virtually(story())


def test_deployments_without_batches_are_left_alone() -> None:
    async def story() -> None:
        gathered = Gathered()
        await asyncio.gather(*(gathered.ask(1, options=DeployOptions()) for _ in range(3)))
        assert gathered.router.sizes == [1, 1, 1]

    run_virtually(story())


def test_only_the_request_at_fault_fails() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        for kind in (RunError, CrashError):
            gathered.router.error = kind
            answers = await gathered.all(1, 13, 3)
            assert is_right(answers[0], 1) and is_right(answers[2], 3)
            assert isinstance(answers[1], kind)
        assert not gathered.gatherer.note("net")
        both = (gathered.ask(1, outputs=["w"]), gathered.ask(2))
        answers = list(await asyncio.gather(*both, return_exceptions=True))
        assert isinstance(answers[0], RunError) and is_right(answers[1], 2)

    run_virtually(story())


def test_a_plan_whose_batches_fail_alone_is_given_up() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        gathered.router.failing_batches = True
        assert all(map(is_right, await gathered.all(1, 2), (1, 2)))
        assert "its requests alone did not: 13 fails" in gathered.gatherer.note("net")
        gathered.router.sizes.clear()
        await gathered.all(1, 2)
        assert gathered.router.sizes == [1, 1]
        assert not gathered.gatherer.note("other")

    run_virtually(story())


def test_a_cluster_error_is_no_verdict() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        gathered.router.failing_batches, gathered.router.error = True, Unavailable
        assert all(map(is_right, await gathered.all(1, 2), (1, 2)))
        assert not gathered.gatherer.note("net")

    run_virtually(story())


@pytest.mark.parametrize("fault", ["wrong_batches", "short_batches"])
def test_a_plan_whose_batches_answer_wrong_is_never_believed(fault: str) -> None:
    async def story() -> None:
        gathered = Gathered()
        setattr(gathered.router, fault, True)
        assert all(map(is_right, await gathered.all(1, 2, 3), (1, 2, 3)))
        assert gathered.gatherer.note("net").startswith("requests are not batched: ")
        gathered.router.sizes.clear()
        assert all(map(is_right, await gathered.all(1, 2, 3), (1, 2, 3)))
        assert gathered.router.sizes == [1, 1, 1]

    run_virtually(story())


def test_the_first_batch_is_compared_and_later_ones_are_not() -> None:
    async def story() -> None:
        gathered = Gathered()
        answers = await gathered.all(1, 2)
        assert all(map(is_right, answers, (1, 2))) and sum(info.runs for _, info in answers) == 3
        assert gathered.router.sizes == [ROWS, 1, 1]
        await gathered.all(1, 2)
        assert gathered.router.sizes == [ROWS, 1, 1, ROWS]

    run_virtually(story())


def test_a_run_whose_plan_is_gone_is_made_singly() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        gathered.router.gone_in_run = True
        assert all(map(is_right, await gathered.all(1, 2), (1, 2)))
        assert gathered.router.sizes == [ROWS, 1, 1]
        assert asyncio.get_running_loop().time() < 2

    run_virtually(story())


def test_no_request_waits_longer_than_its_deadline() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        loop = asyncio.get_running_loop()
        slow = asyncio.create_task(gathered.ask(1))
        await asyncio.sleep(0.02)  # It is run by now; the next one has to wait for it.
        began = loop.time()
        with pytest.raises(DeadlinePassed):
            await gathered.ask(2, deadline_s=0.03)
        assert loop.time() - began == pytest.approx(0.03)
        assert is_right(await slow, 1)
        assert gathered.router.sizes == [1]

    run_virtually(story())


def test_a_client_that_leaves_takes_nobody_along() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        asked = [asyncio.create_task(gathered.ask(value)) for value in (1, 2, 3)]
        await asyncio.sleep(0.05)  # They are run.
        asked[0].cancel()
        assert is_right(await asked[1], 2) and is_right(await asked[2], 3)
        waiting = [asyncio.create_task(gathered.ask(value)) for value in (1, 2)]
        await asyncio.sleep(0.001)
        waiting[0].cancel()
        assert is_right(await waiting[1], 2)
        assert gathered.router.sizes == [ROWS, 1]
        await asyncio.sleep(0.001)
        assert not gathered.gatherer._lanes, "an idle lane is kept"

    run_virtually(story())


def test_a_fault_of_ours_leaves_nobody_waiting() -> None:
    async def story() -> None:
        gathered = await Gathered().judged()
        gathered.router.faulty_batches = True
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        answers = await gathered.all(1, 2)
        assert all(isinstance(answer, InternalError) for answer in answers)
        gathered.router.faulty_batches = False
        assert all(map(is_right, await gathered.all(1, 2), (1, 2)))

    run_virtually(story())
