"""The simulation notices texts that go wrong: rules of the product are broken on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgepart.agent.execution import places
from edgepart.agent.execution import sequences as kept
from edgepart.agent.serving.state_exchange import StateExchange
from edgepart.agent.text import step_batches
from edgepart.agent.text.decoder import Decoder
from edgepart.agent.text.step_batches import Row, StepBatches
from edgepart.agent.text.token_sequences import TokenSequences
from tests.simulation.decoder_layers import (
    CACHES,
    CONTEXT,
    DECODER,
    PLACES,
    Rows,
    logits_of,
    read_inputs,
    text_part,
    undisturbed_logits,
)
from tests.simulation.play import play
from tests.simulation.schedule import WITH_TEXTS
from tests.simulation.test_simulation import noticed
from tests.simulation.trace import Broken
from tests.simulation.virtual_loop import VirtualLoop

WRONG = "and in an undisturbed run it says"
TOKENS = [2, 0, 1, 1, 2, 0, 2]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_decoder_says_the_same_on_any_number_of_devices_by_any_steps(count: int) -> None:
    parts = [text_part(number, count) for number in range(count)]
    assert tuple(layer for one in parts for layer in one.layers) == CACHES
    caches = [[np.full((PLACES, 1, CONTEXT, 1), -1) for _ in one.program.kept] for one in parts]

    def make(rows: Rows, place: slice) -> Rows:
        for one, arrays in zip(parts, caches, strict=True):
            rows = one.compute([array[place] for array in arrays], rows)
        return rows

    make(read_inputs(DECODER.feed(TOKENS[:3], 0)), slice(1, 2))
    made = make(read_inputs(DECODER.feed([TOKENS[3]], 3)), slice(1, 2))
    assert logits_of(made.numbers[0][-1]) == undisturbed_logits(TOKENS[:4])
    make(read_inputs(DECODER.feed(TOKENS[4:6], 4)), slice(1, 2))
    made = make(read_inputs(DECODER.feed_batch([(1, 0), (TOKENS[6], 6), (0, 9)])), slice(0, 3))
    assert logits_of(made.numbers[1][-1]) == undisturbed_logits(TOKENS)
    assert logits_of(made.numbers[0][-1]) == undisturbed_logits([1])


def test_texts_grow_in_every_way_and_are_read_again_in_some_runs() -> None:
    played = [play(seed, 3) for seed in range(WITH_TEXTS - 1, 20, WITH_TEXTS)]
    assert sum(one.tokens for one in played) > 100
    assert any(one.batches for one in played)
    assert any(one.blocks for one in played)
    assert any(one.replayed_texts for one in played)
    assert any(one.resumed_texts for one in played)


def test_a_request_of_several_texts_that_brings_one_of_them_nowhere_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def finish_batch(self: kept.KeptSequences, steps, batch, ended, now):  # type: ignore[no-untyped-def]
        finishes(self, dict(list(steps.items())[1:]), batch, ended, now)

    finishes = kept.KeptSequences.finish_batch
    monkeypatch.setattr(kept.KeptSequences, "finish_batch", finish_batch)
    noticed("of a calm cluster were read again", step=WITH_TEXTS)


def test_two_texts_in_one_place_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def place_of(sequence: str) -> tuple[str, int] | None:
        found = finds(sequence)
        return found and (found[0], min(found[1], 1))

    finds = places.place_of
    for module in (kept, places):
        monkeypatch.setattr(module, "place_of", place_of)
    noticed(WRONG, step=WITH_TEXTS)


def test_a_gateway_that_gives_a_place_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_name(self: Row, place: int) -> str:
        return names(self, 0)

    names = Row.new_name
    monkeypatch.setattr(Row, "new_name", new_name)
    noticed(WRONG, step=WITH_TEXTS)


def test_states_of_another_position_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_back(known, step, prepared, *, in_place):  # type: ignore[no-untyped-def]
        if "/text" not in step.sequence:
            goes_back(known, step, prepared, in_place=in_place)

    goes_back = kept._go_back
    monkeypatch.setattr(kept, "_go_back", go_back)
    noticed(WRONG, step=WITH_TEXTS)


def test_a_request_of_several_texts_while_one_reads_a_prompt_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def may_be_together(self: StepBatches, row: Row, ones: Sequence[object]) -> bool:
        row.reading = 0
        return may(self, row, ones)  # type: ignore[arg-type]

    may = StepBatches._may_be_together
    monkeypatch.setattr(StepBatches, "_may_be_together", may_be_together)
    noticed(WRONG, first=99, seeds=110, agents=3, step=WITH_TEXTS)


def test_answers_that_are_given_to_the_wrong_texts_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_batch(self: Decoder, outputs):  # type: ignore[no-untyped-def]
        logits: Any = reads(self, outputs)
        return logits[::-1]

    reads = Decoder.read_batch
    monkeypatch.setattr(Decoder, "read_batch", read_batch)
    # The gateway compares the first of them with single steps, and makes no others if they differ.
    monkeypatch.setattr(step_batches, "differences", lambda *_: [])
    noticed(WRONG, step=WITH_TEXTS)


def test_a_lost_text_that_goes_on_from_zeros_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(self: kept.KeptSequences, key, step, prepared, *rest):  # type: ignore[no-untyped-def]
        known = step if key in self._kept or "/text" not in step.sequence else replace(step, position=0)
        return begins(self, key, known, prepared, *rest)

    begins = kept.KeptSequences.begin
    monkeypatch.setattr(kept.KeptSequences, "begin", begin)
    noticed(WRONG, step=WITH_TEXTS)


@pytest.mark.parametrize(("agents", "first"), [(3, 60), (5, 0)])
def test_devices_that_go_on_with_the_rows_of_another_text_are_noticed(
    monkeypatch: pytest.MonkeyPatch, agents: int, first: int
) -> None:
    """Plans of three agents have one replica, and some of five have two."""

    def go_on(known, step, prepared, now, *, in_place):  # type: ignore[no-untyped-def]
        known.revision = step.revision
        goes_on(known, step, prepared, now, in_place=in_place)

    goes_on = kept._continue
    monkeypatch.setattr(kept, "_continue", go_on)
    noticed(WRONG, first=first, seeds=first + 40, agents=agents, step=WITH_TEXTS)


def test_a_text_that_is_read_again_in_part_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_on(self, sequence, decoder, whole, at, likely, *, in_blocks):  # type: ignore[no-untyped-def]
        late = at or min(1, len(whole) - 1)
        return await reads(self, sequence, decoder, whole, late, likely, in_blocks=in_blocks)

    reads = TokenSequences._read_on
    monkeypatch.setattr(TokenSequences, "_read_on", read_on)
    noticed("of a calm cluster do not end", step=WITH_TEXTS)


def test_copies_of_another_revision_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_here(self, want, asker):  # type: ignore[no-untyped-def]
        for copy in self.mirrors.copies_of(want.sequence).values():
            copy.revision = want.revision
        return finds(self, want, asker)

    finds = StateExchange._rows_here
    monkeypatch.setattr(StateExchange, "_rows_here", rows_here)
    noticed(WRONG, first=102, seeds=110, agents=3, step=WITH_TEXTS)


def test_a_mirror_that_is_not_told_what_was_given_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_back(known, step, prepared, *, in_place):  # type: ignore[no-untyped-def]
        mirrored = known.mirrored
        goes_back(known, step, prepared, in_place=in_place)
        known.mirrored = mirrored

    goes_back = kept._go_back
    monkeypatch.setattr(kept, "_go_back", go_back)
    noticed(WRONG, seeds=10, agents=3, step=WITH_TEXTS)


def test_copies_of_texts_that_are_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateExchange, "end", lambda self, sequence: None)
    noticed("still keeps copies of sequence", first=678, seeds=681, step=WITH_TEXTS)


def test_states_that_come_when_their_sequence_goes_on_already_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def adopt(self, key, prepared, now, busy, batch):  # type: ignore[no-untyped-def]
        self.expect(key)
        return adopts(self, key, prepared, now, {*busy} - {key}, batch)

    adopts = kept.KeptSequences.adopt
    monkeypatch.setattr(kept.KeptSequences, "adopt", adopt)
    noticed("are written while a step reads them", first=795, seeds=798, step=WITH_TEXTS)


def test_caches_of_texts_that_are_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept.KeptSequences, "end", lambda self, sequence: None)
    noticed("still keeps states of sequence", step=WITH_TEXTS)


def test_a_loop_that_is_closed_ends_its_tasks_at_once_and_what_they_raise_before_ends_the_play() -> None:
    due: list[tuple[object, ...]] = []
    said: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            said.append("ends")

    async def fail() -> None:
        raise Broken("at once")

    loop = VirtualLoop(  # type: ignore[abstract]
        lambda: 0.0, lambda seconds, do, *arguments: due.append((do, *arguments))
    )
    loop.create_task(wait())
    loop.create_task(fail())
    with pytest.raises(Broken, match="at once"):
        while due:
            do, *arguments = due.pop(0)
            do(*arguments)  # type: ignore[operator]
    loop.close()
    assert said == ["ends"] and loop.is_closed()
