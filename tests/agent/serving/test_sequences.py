"""Sequences of clients: whatever devices lose, steps are made again, and clients get the answers of an undisturbed run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.serving.sequences import REPLAY_PAUSE_S, SequenceLimits, Sequences
from edgepart.agent.wire.inference import Epoch, SequenceStep
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import ClusterError, RequestError, StateLost, Unavailable
from edgepart.planner.region import Array
from tests.agent.serving.virtual_time import run_virtually

INFO = AnswerInfo(Epoch(1, 1), 0, "by hand")


class Devices:
    """Devices that keep the numbers of a sequence's steps; the answer is a list of all of them so far."""

    def __init__(self, limits: SequenceLimits | None = None) -> None:
        self.kept: dict[str, list[float]] = {}
        self.asked: list[tuple[str, int]] = []
        """The steps that were asked for: the sequence's name and the position."""
        self.ended: list[tuple[str, str]] = []
        self.losing: set[int] = set()
        """How many steps were asked for before the states of all sequences are lost."""
        self.step_s = 0.0
        self.under_way = 0
        self.most_under_way = 0
        self.failure: Exception | None = None
        """What the next step raises after devices have made it."""
        self._names = 0
        self.sequences = Sequences(self.run, self._make_name, lambda *one: self.ended.append(one), limits)

    def _make_name(self) -> str:
        self._names += 1
        return f"gate/0/{self._names}"

    async def run(
        self,
        deployment: str,
        inputs: Mapping[str, Value],
        deadline_s: float,
        outputs: Sequence[str] = (),
        step: SequenceStep | None = None,
    ) -> tuple[dict[str, Value], AnswerInfo]:
        assert step is not None and step.after == step.position + 1
        if len(self.asked) in self.losing:
            self.kept.clear()
        self.asked.append((step.sequence, step.position))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(min(self.step_s, max(0.0, deadline_s)))
        finally:
            self.under_way -= 1
        if deadline_s <= self.step_s and self.step_s:
            raise ClusterError("the deadline passed")
        numbers = self.kept.get(step.sequence, [])
        if step.position > len(numbers):
            raise StateLost(f"{step.sequence} is not kept here")
        value: Any = inputs["x"]
        numbers = self.kept[step.sequence] = [*numbers[: step.position], float(value[0])]
        if (failure := self.failure) is not None:
            self.failure = None
            raise failure
        return {"y": list(numbers)}, INFO

    async def ask(
        self,
        number: float,
        sequence: str = "p",
        deadline_s: float = 60.0,
        *,
        start: bool = False,
        end: bool = False,
    ) -> list[float]:
        inputs = {"x": x(number)}
        found, _ = await self.sequences.infer("m", sequence, inputs, deadline_s, start=start, end=end)
        answer: Any = found["y"]
        return list(answer)


def x(number: float, size: int = 1) -> Array:
    return np.full(size, number)


def tell(story: Callable[[Devices], Awaitable[None]], limits: SequenceLimits | None = None) -> None:
    async def live() -> None:
        await story(Devices(limits))

    run_virtually(live())


@settings(max_examples=100)
@given(st.sets(st.integers(0, 40)), st.lists(st.sampled_from("pq"), min_size=1, max_size=12))
def test_whatever_is_lost_the_answers_are_those_of_an_undisturbed_run(
    losing: set[int], order: list[str]
) -> None:
    async def story(devices: Devices) -> None:
        devices.losing = losing
        told: dict[str, list[float]] = {}
        for number, name in enumerate(order):
            begins = name not in told
            told.setdefault(name, []).append(number)
            assert await devices.ask(number, name, start=begins) == told[name]

    tell(story)


def test_lost_states_are_made_again_from_the_first_step() -> None:
    async def story(devices: Devices) -> None:
        for number in range(3):
            await devices.ask(number, start=number == 0)
        devices.asked.clear()
        devices.losing = {0}
        assert await devices.ask(3) == [0, 1, 2, 3]
        assert [position for _, position in devices.asked] == [3, 0, 1, 2, 3]
        devices.asked.clear()
        devices.losing = {0, 3}  # The second time while the steps are made again.
        assert await devices.ask(4) == [0, 1, 2, 3, 4]
        assert [position for _, position in devices.asked] == [4, 0, 1, 2, 0, 1, 2, 3, 4]
        assert devices.sequences.replays == 3

    tell(story)


def test_states_that_are_never_kept_take_the_step_s_deadline_and_pauses_between() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, start=True)
        devices.step_s = 0.01
        devices.losing = set(range(10_000))
        began = asyncio.get_running_loop().time()
        with pytest.raises(ClusterError, match="deadline"):
            await devices.ask(1, deadline_s=2.0)
        assert asyncio.get_running_loop().time() - began == pytest.approx(2.0, abs=0.1)
        assert devices.sequences.replays <= 2.0 / REPLAY_PAUSE_S
        devices.losing = set()
        assert await devices.ask(1) == [0, 1]

    tell(story)


def test_a_history_that_is_too_long_is_given_up_and_its_loss_is_told() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, "short", start=True)
        for number in range(4):
            assert len(await devices.ask(number, "long", start=number == 0)) == number + 1
        devices.kept.clear()
        with pytest.raises(StateLost, match="its 4 steps were too large to be kept here: begin it again"):
            await devices.ask(4, "long")
        assert devices.ended == [("m", "gate/0/2")]
        with pytest.raises(RequestError, match="no sequence 'long'"):
            await devices.ask(4, "long")
        assert await devices.ask(1, "short") == [0, 1]
        assert await devices.ask(0, "long", start=True) == [0]

    tell(story, SequenceLimits(history_bytes=4 * 8))


def test_a_history_that_is_given_up_while_it_is_used_is_used_to_the_end() -> None:
    async def story(devices: Devices) -> None:
        devices.step_s = 1.0
        for number in range(3):
            await devices.ask(number, "long", start=number == 0)
        devices.kept.clear()
        devices.losing = {8}  # The step itself, after the others were made again.
        again = asyncio.create_task(devices.ask(3, "long"))
        await asyncio.sleep(2.5)
        await devices.ask(0, "another", start=True)
        assert await again == [0, 1, 2, 3]
        assert devices.sequences.replays == 2

    tell(story, SequenceLimits(history_bytes=3 * 8))


def test_a_sequence_needs_its_first_step_and_ends_with_its_last() -> None:
    async def story(devices: Devices) -> None:
        with pytest.raises(RequestError, match=r"no sequence 'p' of 'm'.*needs sequence_start"):
            await devices.ask(0)
        await devices.ask(0, start=True)
        assert (devices.sequences.count("m"), devices.sequences.count("other")) == (1, 0)
        assert await devices.ask(1, end=True) == [0, 1]
        assert devices.ended == [("m", "gate/0/1")] and devices.sequences.count("m") == 0
        with pytest.raises(RequestError):
            await devices.ask(2)
        assert await devices.ask(9, start=True, end=True) == [9]
        devices.sequences.end("m", "p")
        assert devices.ended == [("m", "gate/0/1"), ("m", "gate/0/2")]

    tell(story)


def test_a_sequence_that_is_begun_anew_forgets_what_was_before() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, start=True)
        await devices.ask(1)
        assert await devices.ask(5, start=True) == [5]
        devices.kept.clear()
        assert await devices.ask(6) == [5, 6]
        assert devices.ended == [("m", "gate/0/1")]

    tell(story)


def test_steps_of_one_sequence_are_made_one_by_one_and_those_of_others_beside_them() -> None:
    async def story(devices: Devices) -> None:
        devices.step_s = 1.0
        await devices.ask(0, start=True)
        answers = await asyncio.gather(*(devices.ask(number) for number in (1, 2, 3)))
        assert answers == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
        assert devices.most_under_way == 1
        await asyncio.gather(devices.ask(4), devices.ask(0, "q", start=True))
        assert devices.most_under_way == 2

    tell(story)


def test_a_step_that_waits_for_others_keeps_its_own_deadline() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, start=True)
        devices.step_s = 10.0
        slow = asyncio.create_task(devices.ask(1))
        await asyncio.sleep(1.0)
        with pytest.raises(Unavailable, match="the deadline passed while the step waited"):
            await devices.ask(2, deadline_s=3.0)
        assert asyncio.get_running_loop().time() == pytest.approx(4.0)
        assert await slow == [0, 1]
        assert await devices.ask(2) == [0, 1, 2]

    tell(story)


def test_a_step_that_waits_is_told_if_its_sequence_is_ended_meanwhile() -> None:
    async def story(devices: Devices) -> None:
        devices.step_s = 1.0
        await devices.ask(0, start=True)
        last = asyncio.create_task(devices.ask(1, end=True))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="was ended while this step waited for its turn"):
            await devices.ask(2)
        assert await last == [0, 1]

    tell(story)


def test_a_last_step_does_not_end_the_sequence_that_was_begun_anew_meanwhile() -> None:
    async def story(devices: Devices) -> None:
        devices.step_s = 1.0
        await devices.ask(0, start=True)
        last = asyncio.create_task(devices.ask(1, end=True))
        await asyncio.sleep(0.5)
        assert await devices.ask(7, start=True) == [7]
        await last
        assert await devices.ask(8) == [7, 8]
        assert devices.ended == [("m", "gate/0/1")]

    tell(story)


@pytest.mark.parametrize(
    "failure", [RequestError("x is none"), Unavailable("full"), asyncio.CancelledError()]
)
def test_a_step_that_was_not_answered_can_be_repeated_with_other_inputs(failure: BaseException) -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, start=True)
        step = asyncio.create_task(_failing(devices, failure))
        with pytest.raises(type(failure)):
            await step
        assert await devices.ask(2) == [0, 2]
        devices.kept.clear()
        assert await devices.ask(3) == [0, 2, 3]

    tell(story)


async def _failing(devices: Devices, failure: BaseException) -> None:
    if isinstance(failure, asyncio.CancelledError):
        devices.step_s = 1.0
        asyncio.get_running_loop().call_later(0.5, _cancel, asyncio.current_task(), devices)
    elif isinstance(failure, Exception):
        devices.failure = failure
    await devices.ask(1)


def _cancel(task: asyncio.Task[Any] | None, devices: Devices) -> None:
    devices.step_s = 0.0
    assert task is not None
    task.cancel()


def test_sequences_that_nobody_goes_on_with_are_ended() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, "idle", start=True)
        await asyncio.sleep(6.0)
        await devices.ask(0, "used", start=True)
        devices.step_s = 20.0
        slow = asyncio.create_task(devices.ask(1, "used"))
        await asyncio.sleep(15.0)
        with pytest.raises(RequestError, match="after 10 s without a step a sequence ends"):
            await devices.ask(1, "idle")
        assert devices.ended == [("m", "gate/0/1")]  # The other one has a step under way.
        assert await slow == [0, 1]

    tell(story, SequenceLimits(idle_s=10.0))


def test_there_are_only_so_many_sequences() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, "p", start=True)
        await devices.ask(0, "q", start=True)
        with pytest.raises(Unavailable, match="2 sequences are under way at this agent already"):
            await devices.ask(0, "third", start=True)
        assert await devices.ask(5, "q", start=True) == [5]
        await devices.ask(1, "p", end=True)
        assert await devices.ask(0, "third", start=True) == [0]

    tell(story, SequenceLimits(sequences=2))


def test_inputs_are_copied_before_their_memory_is_used_again() -> None:
    async def story(devices: Devices) -> None:
        body = x(3)
        await devices.sequences.infer("m", "p", {"x": body}, 60.0, start=True)
        body[:] = 99
        devices.kept.clear()
        assert await devices.ask(4) == [3, 4]

    tell(story)


def test_a_step_of_other_shapes_is_refused_and_harms_nothing() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, start=True)
        with pytest.raises(RequestError, match=r"'x' has shape \(2,\), and in the first step .* \(1,\)"):
            await devices.sequences.infer("m", "p", {"x": x(1, size=2)}, 60.0)
        assert await devices.ask(1) == [0, 1]
        await devices.sequences.infer("m", "p", {"x": x(1, size=2)}, 60.0, start=True)

    tell(story)
