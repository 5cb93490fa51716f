"""Replays: whatever devices lose, steps are made again, and clients get the answers of an undisturbed run."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.serving.sequence_history import SequenceLimits
from edgepart.agent.serving.sequences import REPLAY_PAUSE_S
from edgepart.planner.errors import ClusterError, RequestError, StateLost
from tests.agent.serving.keeping import Devices, tell, x


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


def test_inputs_are_copied_before_their_memory_is_used_again() -> None:
    async def story(devices: Devices) -> None:
        body = x(3)
        await devices.sequences.infer("m", "p", {"x": body}, 60.0, start=True)
        body[:] = 99
        devices.kept.clear()
        assert await devices.ask(4) == [3, 4]

    tell(story)
