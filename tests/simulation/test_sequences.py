"""The simulation notices sequences that go wrong: rules of the product are broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgepart.agent.execution import sequences as kept
from edgepart.agent.execution.places import make_first_states
from edgepart.agent.serving.request_state import Requests
from edgepart.agent.serving.sequence_history import SequenceHistories, StepUnderWay
from tests.simulation.layers import LAYERS, part, undisturbed
from tests.simulation.play import play
from tests.simulation.test_simulation import noticed

WRONG = "and in an undisturbed run it has"


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_layers_give_the_same_answers_on_any_number_of_devices(count: int) -> None:
    parts = [part(number, count) for number in range(count)]
    assert tuple(layer for one in parts for layer in one.layers) == LAYERS
    states = [make_first_states(one) for one in parts]
    answers = []
    for position in range(5):
        value = position % 2
        for number, one in enumerate(parts):
            value, states[number] = one.compute(states[number], position, value)
        answers.append(value)
    assert answers == [undisturbed([n % 2 for n in range(length)]) for length in range(1, 6)]
    assert len(set(answers)) == len(answers)


def test_sequences_are_made_again_in_some_runs() -> None:
    played = [play(seed, 4) for seed in range(8)]
    assert sum(one.steps for one in played) > 50
    assert any(one.replayed_sequences for one in played)


def test_a_step_that_begins_with_the_states_of_another_position_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "_go_back", lambda known, step, prepared, *, in_place: None)
    noticed(WRONG)


def test_a_lost_sequence_that_goes_on_from_zeros_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(self: kept.KeptSequences, key, step, prepared, *rest):  # type: ignore[no-untyped-def]
        return begins(self, key, step, prepared, *rest) if key in self._kept else make_first_states(prepared)

    begins = kept.KeptSequences.begin
    monkeypatch.setattr(kept.KeptSequences, "begin", begin)
    noticed(WRONG)


def test_states_before_a_step_that_are_those_after_it_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(self: kept.KeptSequences, key, step, prepared, began, ended, now):  # type: ignore[no-untyped-def]
        finishes(self, key, step, prepared, ended, ended, now)

    finishes = kept.KeptSequences.finish
    monkeypatch.setattr(kept.KeptSequences, "finish", finish)
    noticed(WRONG)


def test_a_step_that_is_tried_again_without_those_before_it_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = Requests._handle_failure
    monkeypatch.setattr(
        Requests,
        "_handle_failure",
        lambda self, event, now: handle(self, replace(event, lost_state=False), now),
    )
    noticed("of a calm cluster do not end")


def test_steps_that_are_made_again_in_part_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: StepUnderWay, error: str) -> None:
        loses(self, error)
        self._made = min(1, self.history.position)

    loses = StepUnderWay.lost
    monkeypatch.setattr(StepUnderWay, "lost", lost)
    noticed("of a calm cluster do not end")


def test_a_history_without_one_of_its_steps_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def remember(self: SequenceHistories, history, inputs, now):  # type: ignore[no-untyped-def]
        remembers(self, history, inputs, now)
        if history.position == 3:
            history.inputs[2] = history.inputs[1]

    remembers = SequenceHistories.remember
    monkeypatch.setattr(SequenceHistories, "remember", remember)
    noticed(WRONG)


def test_states_of_a_sequence_that_has_ended_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept.KeptSequences, "end", lambda self, sequence: None)
    noticed("still keeps states of sequence")
