"""Token sequences: what is read again, what is not, who has a turn, and what losses do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.text import token_sequences
from edgepart.agent.text.decoder import read_decoder
from edgepart.agent.text.token_sequences import MOST_REPLAYS, TokenSequence, TokenSequences
from edgepart.planner.errors import RunError, Unavailable
from edgepart.planner.region import Array
from tests.agent.text.fake_devices import FakeDevices, decoder_plan, logits_after

LONG_S = 600.0


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sequences, "REPLAY_PAUSE_S", 0.0)


class Desk:
    """The sequences of one gateway, and the devices."""

    def __init__(self, *, in_place: bool = True, block: int = 0, batch: int = 0) -> None:
        self.devices = made = FakeDevices(in_place=in_place)
        self.sequences = TokenSequences(
            made,
            made.block,
            made.name,
            made.end,
            made.room,
            made.serving,
            made.resume,
            made.tolerance,
        )
        self.decoder = read_decoder("chat", decoder_plan(in_place=in_place, block=block, batch=batch))

    @asynccontextmanager
    async def take(self, prompt: Sequence[int], wait_s: float = LONG_S) -> AsyncIterator[TokenSequence]:
        async with self.sequences.take("chat", self.decoder, prompt, wait_s) as sequence:
            yield sequence

    async def step(self, sequence: TokenSequence, token: int) -> Array:
        return await self.read(sequence, [token])

    async def read(self, sequence: TokenSequence, tokens: Sequence[int]) -> Array:
        logits = await self.sequences.read(sequence, self.decoder, tokens)
        assert isinstance(logits, np.ndarray)
        return logits

    async def answer(self, prompt: Sequence[int]) -> tuple[TokenSequence, list[int]]:
        """Read a prompt; returns its sequence and the tokens that were read."""
        before = len(self.devices.read)
        async with self.take(prompt) as sequence:
            new = prompt[len(sequence.tokens) :]
            logits = await self.read(sequence, new)
            assert logits.tolist() == logits_after(prompt).tolist()
        return sequence, [token for _, _, token in self.devices.read[before:]]


def run(
    story: Callable[[Desk], Coroutine[Any, Any, None]],
    *,
    in_place: bool = True,
    block: int = 0,
    batch: int = 0,
) -> None:
    async def told() -> None:
        await story(Desk(in_place=in_place, block=block, batch=batch))

    asyncio.run(told())


async def settle() -> None:
    """Let all other tasks go on until they wait."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_of_several_sequences_the_one_with_the_longest_common_start_goes_on() -> None:
    async def story(desk: Desk) -> None:
        first, _ = await desk.answer([1, 2, 3, 4])
        second, _ = await desk.answer([5, 6, 7, 8])
        assert first is not second
        again, read = await desk.answer([5, 6, 7, 9, 10])
        assert again is second and read == [9, 10]
        again, read = await desk.answer([1, 2, 3, 4, 11])
        assert again is first and read == [11]

    run(story)


def test_states_in_place_are_cut_and_others_only_go_on_from_their_end() -> None:
    for in_place, read_of_a_fork in ((True, [9]), (False, [1, 2, 3, 9])):

        async def story(desk: Desk, expected: list[int] = read_of_a_fork) -> None:
            await desk.answer([1, 2, 3, 4])
            assert (await desk.answer([1, 2, 3, 9]))[1] == expected
            assert (await desk.answer([1, 2, 3, 9, 10]))[1] == [10]

        run(story, in_place=in_place)


@pytest.mark.parametrize(("in_place", "read"), [(True, [3]), (False, [1, 2, 3])])
def test_the_last_token_of_a_prompt_is_always_read(in_place: bool, read: list[int]) -> None:
    async def story(desk: Desk) -> None:
        await desk.answer([1, 2, 3])
        assert (await desk.answer([1, 2, 3]))[1] == read

    run(story, in_place=in_place)


def test_while_there_is_room_a_chat_is_not_given_up_for_the_begin_that_all_chats_share() -> None:
    async def story(desk: Desk) -> None:
        first, _ = await desk.answer([1, 2, 3, 4, 5, 6])
        again, read = await desk.answer([1, 2, 3])  # All of it is known: another answer is asked for.
        assert again is first and read == [3]
        await desk.answer([1, 2, 3, 4, 5, 6])
        second, read = await desk.answer([1, 2, 7, 7])
        assert second is not first and read == [1, 2, 7, 7]
        third, read = await desk.answer(
            [1, 2, 3, 8]
        )  # There is no more room: the longest common start counts.
        assert third is first and read == [8]
        fourth, read = await desk.answer(
            [20, 21]
        )  # Nothing in common: the one that was used longest ago goes.
        assert fourth is second and read == [20, 21]
        assert desk.devices.ended == []

    run(story)


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), max_size=8)
STYLES = st.sampled_from(
    [(True, 0, 0), (False, 0, 0), (True, 2, 0), (False, 4, 0), (True, 4, 3), (True, 0, 2)]
)


STEPS = st.lists(st.integers(1, 40), max_size=4)


@given(
    PROMPTS,
    STYLES,
    STEPS,
    st.lists(st.integers(1, 12), max_size=4),
    STEPS,
    STEPS,
    st.lists(st.integers(0, 7), max_size=3),
)
def test_whatever_came_before_and_is_lost_the_logits_are_those_of_the_prompt(
    prompts: list[list[int]],
    style: tuple[bool, int, int],
    losses: list[int],
    lost_blocks: list[int],
    moves: list[int],
    copying: list[int],
    failing: list[int],
) -> None:
    async def story(desk: Desk) -> None:
        desk.devices.losses, desk.devices.lost_blocks, desk.devices.moves = losses, lost_blocks, moves
        desk.devices.copying = copying
        for number, prompt in enumerate(prompts):
            if number in failing:  # A step of it is made, and its answer is lost.
                desk.devices.failure = RunError("no memory")
                with pytest.raises(RunError):
                    await desk.answer(prompt)
            else:
                await desk.answer(prompt)  # which compares the logits

    run(story, in_place=style[0], block=style[1], batch=style[2])


@pytest.mark.parametrize("in_place", [True, False])
def test_a_prompt_is_read_in_blocks_but_for_its_last_token(in_place: bool) -> None:
    async def story(desk: Desk) -> None:
        _, read = await desk.answer(list(range(14)))
        assert read == list(range(14)) and desk.devices.blocks == [4, 4, 4]

    run(story, block=4, in_place=in_place)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_block_that_is_lost_is_missed_though_devices_have_rows_of_another_text_there(lost: int) -> None:
    async def story(desk: Desk) -> None:
        desk.devices.rooms = 1
        await desk.answer([1] * 20)
        desk.devices.lost_blocks = [len(desk.devices.blocks) + lost]
        _, read = await desk.answer([1, 1, *[2] * 16])  # which compares the logits
        assert 2 in read and desk.sequences.replays == 1

    run(story, block=4)


def test_what_devices_read_before_a_loss_is_given_up_where_it_is_read_again() -> None:
    """A token that is read for other texts meanwhile writes over a text of which the gateway has no token yet."""

    async def story(desk: Desk) -> None:
        devices = desk.devices
        devices.lost_blocks = [2, 4]  # The second one, and the first one when the prompt is read again.
        resume = devices.resume

        async def overwritten(*asked: Any) -> int:
            for kept in devices.states.values():
                kept[:1] = [-1]
            return await resume(*asked)

        desk.sequences._resume = overwritten
        sequence, _ = await desk.answer(list(range(14)))  # which compares the logits
        assert sequence.replays == 2

    run(story, block=4)


def test_a_replica_that_keeps_rows_of_another_text_does_not_go_on_with_them() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.rooms = 1
        await desk.answer([1] * 4)
        desk.devices.moves = [5, 6]
        async with desk.take([2, 2]) as sequence:
            assert (await desk.step(sequence, 2)).tolist() == logits_after([2]).tolist()
            assert (await desk.step(sequence, 2)).tolist() == logits_after([2, 2]).tolist()
            assert sequence.replays == 1

    run(story)


def test_a_client_that_leaves_while_blocks_are_read_leaves_no_sequence_that_they_reach() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.gate = asyncio.Event()
        async with desk.take([1]) as sequence:
            name = sequence.name
            reading = asyncio.create_task(desk.sequences.read(sequence, desk.decoder, list(range(14))))
            await settle()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            assert desk.devices.ended == [("chat", name)] and sequence.name != name
        desk.devices.gate = None
        assert (await desk.answer(list(range(14))))[0] is sequence

    run(story, block=4)


def test_an_error_after_blocks_leaves_no_sequence_that_they_reach() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.failure = RunError("no memory")
        async with desk.take([1]) as sequence:
            name = sequence.name
            with pytest.raises(RunError):
                await desk.sequences.read(sequence, desk.decoder, list(range(14)))
        assert desk.devices.ended == [("chat", name)] and desk.devices.blocks == [4, 4, 4]
        assert (await desk.answer(list(range(14))))[0].name != name

    run(story, block=4)


def test_turns_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    async def story(desk: Desk) -> None:
        turns: list[str] = []
        leave = {name: asyncio.Event() for name in "abcd"}

        async def client(name: str) -> None:
            async with desk.take([1]):
                turns.append(name)
                await leave[name].wait()

        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(client(name))
                await settle()
            assert turns == ["a", "b"] and desk.sequences.count("chat") == (2, 0)
            leave["b"].set()
            late = group.create_task(client("d"))  # It comes in the moment in which a turn is free.
            await settle()
            assert turns == ["a", "b", "c"]
            leave["a"].set()
            leave["c"].set()
            leave["d"].set()
            await late
        assert turns == ["a", "b", "c", "d", "d"] and desk.sequences.count("chat")[0] == 0

    run(story)


def test_those_who_wait_for_another_deployment_do_not_take_the_wake_up() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.rooms = 1
        served = asyncio.Event()

        async def other() -> None:
            async with desk.sequences.take("other", desk.decoder, [1], LONG_S):
                pass

        async def waiting() -> None:
            async with desk.take([1]):
                served.set()

        async with desk.sequences.take("other", desk.decoder, [1], LONG_S):
            async with desk.take([1]):
                tasks = [asyncio.create_task(other()), asyncio.create_task(waiting())]
                await settle()
                assert not served.is_set()
            await settle()
            assert served.is_set()
        await asyncio.gather(*tasks)

    run(story)


def test_without_room_a_prompt_is_refused_once_it_waited() -> None:
    async def story(desk: Desk) -> None:
        async with desk.take([1]), desk.take([2]):
            with pytest.raises(Unavailable, match=r"generates 2 texts already.*--sequences"):
                async with desk.take([3], wait_s=0.0):
                    pytest.fail("there was no room")
        async with desk.take([3], wait_s=0.0), desk.take([4], wait_s=0.0):
            assert desk.sequences.count("chat") == (2, 0)

    run(story)


@pytest.mark.parametrize("given", [False, True], ids=["before its turn", "as its turn came"])
def test_a_client_that_leaves_while_it_waits_takes_no_room(given: bool) -> None:
    async def story(desk: Desk) -> None:
        desk.devices.rooms = 1

        async def client() -> None:
            async with desk.take([1]):
                pytest.fail("it left before")

        async with desk.take([1]):
            waiting = asyncio.create_task(client())
            await settle()
            if not given:
                waiting.cancel()
                await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        assert desk.sequences.count("chat") == (0, 1)
        async with desk.take([1], wait_s=0.0):
            assert desk.sequences.count("chat") == (1, 0)

    run(story)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    ("losses", "replays"),
    # A loss before the first token of a sequence, or of those that are read again, loses nothing.
    [([1], 0), ([2], 1), ([4], 1), ([6], 1), ([3, 5], 2), ([3, 4], 1), ([4, 5, 6, 7], 2)],
)
def test_after_a_loss_all_tokens_are_read_again_and_the_logits_are_the_same(
    losses: list[int], replays: int, in_place: bool
) -> None:
    async def story(desk: Desk) -> None:
        desk.devices.losses = losses
        prompt = [3, 1, 4, 1, 5, 9]
        async with desk.take(prompt) as sequence:
            for number, token in enumerate(prompt):
                logits = await desk.step(sequence, token)
                assert logits.tolist() == logits_after(prompt[: number + 1]).tolist()
            assert sequence.tokens == prompt
            assert sequence.replays == desk.sequences.replays == replays

    run(story, in_place=in_place)


@pytest.mark.parametrize(("copying", "again"), [([5], 0), ([3], 2), ([3, 4], 1), ([], 4)])
def test_only_what_copies_of_the_states_lack_is_read_again(copying: list[int], again: int) -> None:
    async def story(desk: Desk) -> None:
        desk.devices.copying = copying
        async with desk.take([1]) as sequence:
            for token in (3, 1, 4, 1):
                await desk.step(sequence, token)
            desk.devices.losses = [desk.devices.asked + 1]
            before = len(desk.devices.read)
            logits = await desk.step(sequence, 5)
            assert logits.tolist() == logits_after([3, 1, 4, 1, 5]).tolist()
            assert len(desk.devices.read) - before == again + 1
            assert sequence.replays == desk.sequences.replays == (again > 0)
            assert desk.sequences.resumed == (again < 4)

    run(story)


def test_copies_of_tokens_that_were_given_up_are_of_no_use() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.rooms = 1
        await desk.answer([1, 2, 3, 4])
        desk.devices.copying = [5]
        await desk.answer([1, 2, 7, 8, 9])  # Two tokens of the copy are others now.
        desk.devices.losses = [desk.devices.asked + 1]
        _, read = await desk.answer([1, 2, 7, 8, 9, 5])
        assert read == [1, 2, 7, 8, 9, 5]

    run(story)


def test_a_client_that_leaves_right_after_a_loss_leaves_nothing_that_another_prompt_could_meet() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.rooms = 1
        desk.devices.lost_blocks = [2]
        prompt = [1] * 13
        async with desk.take(prompt) as sequence:
            reading = asyncio.create_task(desk.sequences.read(sequence, desk.decoder, prompt))
            while not desk.devices.resumes:
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        desk.devices.lost_blocks = [desk.devices.blocks_asked + 1]
        await desk.answer([*[1] * 4, *[2] * 9])  # which compares the logits

    run(story, block=4)


def test_a_copy_of_a_step_whose_answer_was_lost_is_of_no_use() -> None:
    async def story(desk: Desk) -> None:
        async with desk.take([1]) as sequence:
            await desk.step(sequence, 3)
            desk.devices.failure = RunError("no memory")
            with pytest.raises(RunError):
                await desk.step(sequence, 1)
            desk.devices.copying = [3]  # The devices have made the step.
            await desk.step(sequence, 4)
            desk.devices.losses = [desk.devices.asked + 1]
            logits = await desk.step(sequence, 5)
            assert logits.tolist() == logits_after([3, 4, 5]).tolist()

    run(story)


def test_states_that_are_not_written_in_place_are_not_asked_for() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.copying = [2]
        async with desk.take([1]) as sequence:
            await desk.step(sequence, 3)
            desk.devices.losses = [desk.devices.asked + 1]
            await desk.step(sequence, 5)
        assert desk.sequences.resumed == 0 and desk.sequences.replays == 1

    run(story, in_place=False)


def test_states_that_are_lost_again_and_again_end_the_text() -> None:
    async def story(desk: Desk) -> None:
        async with desk.take([1, 2, 3]) as sequence:
            await desk.step(sequence, 1)
            desk.devices.losses = list(range(2, 1000, 2))  # every second step
            with pytest.raises(Unavailable, match=f"lost .* {MOST_REPLAYS} times"):
                await desk.step(sequence, 2)
            assert sequence.tokens == [1]
            desk.devices.losses = []
            assert (await desk.step(sequence, 2)).tolist() == logits_after([1, 2]).tolist()

    run(story)


@pytest.mark.parametrize("in_place", [True, False])
def test_after_a_step_that_was_cancelled_the_sequence_is_as_before(in_place: bool) -> None:
    async def story(desk: Desk) -> None:
        async with desk.take([1, 2, 3]) as sequence:
            await desk.step(sequence, 1)
            desk.devices.gate = asyncio.Event()
            stuck = asyncio.create_task(desk.step(sequence, 2))
            await settle()
            assert desk.devices.states[sequence.name] == [1, 2]  # The devices have made the step already.
            stuck.cancel()
            await asyncio.gather(stuck, return_exceptions=True)
            assert stuck.cancelled() and sequence.tokens == [1]
            desk.devices.gate = None
            assert (await desk.step(sequence, 7)).tolist() == logits_after([1, 7]).tolist()

    run(story, in_place=in_place)


async def fail(_: Desk, __: TokenSequence) -> None:
    raise ValueError


async def fail_in_a_step(desk: Desk, sequence: TokenSequence) -> None:
    desk.devices.failure = RunError("no memory")
    await desk.step(sequence, 1)


async def leave(_: Desk, __: TokenSequence) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("how", [fail, fail_in_a_step, leave])
def test_whatever_ends_the_use_of_a_sequence_it_is_free_again(
    how: Callable[[Desk, TokenSequence], Awaitable[None]],
) -> None:
    async def story(desk: Desk) -> None:
        with pytest.raises((ValueError, RunError, asyncio.CancelledError)):
            async with desk.take([1, 2]) as sequence:
                assert desk.sequences.count("chat") == (1, 0)
                await how(desk, sequence)
        assert desk.sequences.count("chat") == (0, 1)
        assert (await desk.answer([1, 2]))[0] is sequence

    run(story)


def test_sequences_of_a_model_that_was_replaced_end_and_are_not_used_for_the_next() -> None:
    async def story(desk: Desk) -> None:
        old, _ = await desk.answer([1, 2, 3])
        desk.devices.model = "digest-2"
        desk.decoder = read_decoder("chat", decoder_plan(model="digest-2"))
        async with desk.take([1, 2, 3]) as new:
            assert new is not old and new.tokens == []
            assert desk.devices.ended == [("chat", old.name)]

    run(story)


def test_a_text_under_way_ends_once_another_model_serves_under_the_name() -> None:
    async def story(desk: Desk) -> None:
        async with desk.take([1, 2, 3]) as sequence:
            await desk.step(sequence, 1)
            desk.devices.model = None  # Between two plans there may be none for a moment.
            await desk.step(sequence, 2)
            desk.devices.model = "digest-2"
            with pytest.raises(Unavailable, match="deployed again"):
                await desk.step(sequence, 3)

    run(story)


def test_sequences_of_deployments_that_are_gone_are_forgotten() -> None:
    async def story(desk: Desk) -> None:
        kept, _ = await desk.answer([1, 2, 3])
        desk.sequences.note_speed("chat", 5.0)
        desk.sequences.keep(["chat"])
        assert (await desk.answer([1, 2, 3, 4]))[0] is kept
        desk.sequences.keep(["other"])
        assert desk.devices.ended == [("chat", kept.name)]
        assert desk.sequences.count("chat") == (0, 0) and desk.sequences.speed("chat") is None

    run(story)


def test_the_speed_is_the_average_of_the_last_answers() -> None:
    async def story(desk: Desk) -> None:
        assert desk.sequences.speed("chat") is None
        for tokens_per_s in (1000.0, *[3.0] * 4, *[5.0] * 4):
            desk.sequences.note_speed("chat", tokens_per_s)
        assert desk.sequences.speed("chat") == 4.0

    run(story)
