"""Sequences of clients: how they begin, go on and end, one step after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edgepart.agent.serving.sequence_history import SequenceLimits
from edgepart.planner.errors import RequestError, StateLost, Unavailable
from tests.agent.serving.keeping import Devices, tell, x


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


def test_a_step_of_other_shapes_is_refused_and_harms_nothing() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, start=True)
        with pytest.raises(RequestError, match=r"'x' has shape \(2,\), and in the first step .* \(1,\)"):
            await devices.sequences.infer("m", "p", {"x": x(1, size=2)}, 60.0)
        assert await devices.ask(1) == [0, 1]
        await devices.sequences.infer("m", "p", {"x": x(1, size=2)}, 60.0, start=True)

    tell(story)


def test_a_sequence_of_a_model_that_was_replaced_ends_and_says_so() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, start=True)
        devices.serving = None  # For a moment no plan is known, and that is no other model.
        assert await devices.ask(1) == [0, 1]
        devices.serving = "second model"
        with pytest.raises(
            StateLost, match="'m' was deployed again with another model after 2 steps of sequence 'p'"
        ):
            await devices.ask(2)
        assert devices.ended == [("m", "gate/0/1")] and devices.sequences.count("m") == 0
        assert await devices.ask(5, start=True) == [5]

    tell(story)


def test_a_sequence_whose_model_is_replaced_during_a_step_is_not_made_again_on_the_other() -> None:
    async def story(devices: Devices) -> None:
        await devices.ask(0, start=True)
        await devices.ask(1)
        devices.step_s = 1.0
        slow = asyncio.create_task(devices.ask(2))
        await asyncio.sleep(0.5)
        devices.serving = "second model"
        devices.kept.clear()
        with pytest.raises(StateLost, match="another model"):
            await slow
        assert [position for _, position in devices.asked] == [0, 1, 2]

    tell(story)
