"""Step batches: several texts at the same time are read by common requests, and each is what it would be alone."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.text import step_batches, token_sequences
from edgepart.agent.text.decoder import read_decoder
from edgepart.agent.text.step_batches import APART_S
from edgepart.agent.wire.inference import Epoch
from edgepart.agent.wire.likely_entries import LikelyEntries
from edgepart.planner.errors import RunError
from tests.agent.serving.virtual_time import run_virtually
from tests.agent.text.fake_devices import decoder_plan, greedy, logits_after
from tests.agent.text.test_token_sequences import Desk, settle

BATCH = 3


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sequences, "REPLAY_PAUSE_S", 0.0)
    monkeypatch.setattr(step_batches, "GATHER_S", 0.0)


def run(story: Callable[[Desk], Coroutine[Any, Any, None]], *, batch: int = BATCH) -> None:
    async def told() -> None:
        desk = Desk(block=4, batch=batch)
        desk.devices.rooms = 5
        await story(desk)

    asyncio.run(told())


async def write(desk: Desk, prompt: Sequence[int], count: int, *, late: int = 0) -> list[int]:
    """Read a prompt, and then `count` tokens that follow it one by one; `late` turns of the loop pass before."""
    for _ in range(late):
        await asyncio.sleep(0)
    tokens = list(prompt)
    async with desk.take(prompt) as sequence:
        logits = await desk.read(sequence, prompt[len(sequence.tokens) :])
        for _ in range(count):
            assert logits.tolist() == logits_after(tokens).tolist()
            tokens.append(int(logits.argmax()))
            logits = await desk.step(sequence, tokens[-1])
    return tokens[len(prompt) :]


TEXTS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 12), st.integers(0, 30)),
    min_size=1,
    max_size=7,
)


@given(TEXTS, st.lists(st.integers(1, 60), max_size=4), st.integers(2, 4))
def test_each_text_is_what_it_would_be_alone(
    texts: list[tuple[list[int], int, int]], losses: list[int], batch: int
) -> None:
    async def story(desk: Desk) -> None:
        desk.devices.losses = losses
        for _ in range(2):  # The second time each goes on with what is kept of it.
            wrote = await asyncio.gather(*(write(desk, *text[:2], late=text[2]) for text in texts))
            assert wrote == [greedy(prompt, count) for prompt, count, _ in texts]

    run(story, batch=batch)


def test_a_text_alone_is_read_by_usual_steps() -> None:
    async def story(desk: Desk) -> None:
        await write(desk, [1, 2], 6)
        assert desk.devices.together == [] and len(desk.devices.read) == 8

    run(story)


def test_texts_at_the_same_time_are_read_together_in_rows() -> None:
    async def story(desk: Desk) -> None:
        await asyncio.gather(*(write(desk, [number, 1], 20) for number in range(5)))
        assert sorted(set(desk.devices.together[5:])) == [2, 3]
        # Without common requests these were 5 x 22 steps.
        assert len(desk.devices.together) < 50

    run(story)


def test_the_first_common_step_of_a_plan_is_made_again_one_by_one() -> None:
    async def story(desk: Desk) -> None:
        for epoch in (Epoch(1, 1), Epoch(1, 2)):
            desk.devices.epoch, desk.devices.together = epoch, []
            before = len(desk.devices.read)
            await asyncio.gather(*(write(desk, [epoch.number, number, 1], 10) for number in range(3)))
            made = Counter(desk.devices.read[before:])
            twice = [step for step, count in made.items() if count > 1]
            assert len(twice) == desk.devices.together[0]
            assert sum(desk.devices.together) > 2 * len(twice)

    run(story)


@pytest.mark.parametrize("error", [-2.0, -0.5, 0.001, math.nan])
def test_texts_take_turns_on_a_plan_whose_common_steps_are_wrong(error: float) -> None:
    async def story(desk: Desk) -> None:
        desk.devices.error_together = error

        async def write_all() -> None:
            # `write` looks at all logits.
            await asyncio.gather(*(write(desk, [number, 1], 12) for number in range(3)))

        await write_all()
        await write_all()
        assert len(desk.devices.together) == 1
        assert "take turns" in desk.sequences.note("chat") and desk.sequences.note("another") == ""
        desk.devices.epoch, desk.devices.error_together = Epoch(1, 2), 0.0
        await write_all()
        assert len(desk.devices.together) > 2 and desk.sequences.note("chat") == ""

    run(story)


def test_a_difference_within_the_tolerance_is_none() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.error_together = 1e-5

        async def say(token: int) -> None:
            async with desk.take([token, 1]) as sequence:
                await desk.read(sequence, [token, 1])
                for _ in range(12):
                    await desk.step(sequence, token)

        await asyncio.gather(*map(say, range(3)))
        assert len(desk.devices.together) > 2 and desk.sequences.note("chat") == ""

    run(story)


def test_what_is_known_of_a_plan_is_forgotten_with_its_deployment() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.error_together = 1.0
        await asyncio.gather(*(write(desk, [number, 1], 12) for number in range(3)))
        assert desk.sequences.note("chat")
        desk.sequences.keep(["another"])
        assert not desk.sequences.note("chat")

    run(story)


def test_devices_without_memory_for_a_row_are_asked_for_one_step_after_the_other() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.side_by_side = False
        wrote = await asyncio.gather(*(write(desk, [number, 1], 10) for number in range(3)))
        assert wrote == [greedy([number, 1], 10) for number in range(3)]
        assert desk.devices.together == [] and desk.sequences.replays == 0

    run(story)


@pytest.mark.parametrize("step_s", [0.7, 3.0, 9.0])
def test_devices_that_get_ready_are_asked_for_common_steps_again_before_long(step_s: float) -> None:
    async def story() -> None:
        desk = Desk(block=4, batch=BATCH)
        desk.devices.side_by_side, desk.devices.step_s = False, step_s
        writers = [asyncio.create_task(write(desk, [number, 1], 30)) for number in range(2)]
        await asyncio.sleep(5.5 * step_s)
        desk.devices.side_by_side = True
        # The last one may have failed just before, and single steps are under way when its time is over.
        await asyncio.sleep(APART_S + 3 * step_s)
        assert desk.devices.together
        await asyncio.gather(*writers)

    run_virtually(story())


def test_an_error_is_that_of_all_texts_that_were_read_together() -> None:
    async def story(desk: Desk) -> None:
        writers = [asyncio.ensure_future(write(desk, [number, 1], 40)) for number in range(3)]
        while len(desk.devices.together) < 3:
            await asyncio.sleep(0)
        desk.devices.failure = RunError("segment 3 failed")
        found = await asyncio.gather(*writers, return_exceptions=True)
        assert all(isinstance(one, RunError) for one in found)
        # The places are free again, and the devices' states are those of the tokens.
        assert await write(desk, [1, 1], 3) == greedy([1, 1], 3)

    run(story)


def test_a_text_that_is_given_up_keeps_no_other_waiting() -> None:
    async def story(desk: Desk) -> None:
        desk.devices.gate = asyncio.Event()
        writers = [asyncio.ensure_future(write(desk, [number, 1], 12)) for number in range(3)]
        await settle()
        desk.devices.gate.set()
        while not desk.devices.together:
            await asyncio.sleep(0)
        writers[1].cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        assert writers[0].result() == greedy([0, 1], 12) and writers[2].result() == greedy([2, 1], 12)
        assert writers[1].cancelled()
        assert await write(desk, [1, 1], 12) == greedy([1, 1], 12)

    run(story)


def test_a_place_is_used_again_by_another_name() -> None:
    async def story(desk: Desk) -> None:
        names = set()
        for number in range(12):
            # Sequences of the model before are ended.
            desk.devices.model = model = f"digest-{number}"
            desk.decoder = read_decoder("chat", decoder_plan(batch=BATCH, model=model))
            async with desk.take([number, number]) as sequence:
                await desk.sequences.read(sequence, desk.decoder, [number, number])
                names.add(sequence.name)
        rows = {name.rpartition("/")[0] for name in names}
        assert len(names) == 12 and len(rows) <= 12 and len(desk.devices.ended) == 11

    run(story)


@pytest.mark.parametrize(("wanted", "asked"), [((3, 9), 9), ((3, 0), 0)])
def test_a_common_request_asks_for_as_much_as_any_of_its_texts_needs(
    wanted: tuple[int, int], asked: int
) -> None:
    async def ask(desk: Desk, first: int, likely: int) -> None:
        async with desk.take([first, 1]) as sequence:
            await desk.sequences.read(sequence, desk.decoder, [first, 1])
            for token in range(20):
                found = await desk.sequences.read(sequence, desk.decoder, [token], likely)
                assert isinstance(found, np.ndarray if likely == 0 else (np.ndarray, LikelyEntries))
                if isinstance(found, LikelyEntries):
                    assert found.count >= likely

    async def story(desk: Desk) -> None:
        await asyncio.gather(ask(desk, 5, wanted[0]), ask(desk, 6, wanted[1]))
        assert len(desk.devices.together) > 10
        assert desk.devices.likely.count(asked) >= len(desk.devices.together)

    run(story)
