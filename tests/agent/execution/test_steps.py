"""Steps of sequences on a device: they wait for the step before, begin with its states, and say so if those are lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgepart.agent.wire.inference import Tensors
from tests.agent.execution.stateful import (
    EPOCH,
    GATE,
    Device,
    X,
    Z,
    after,
    on_device,
    stateless_program,
    step_of,
)

OTHER = f"{GATE}/0/q"


def pass_by(device: Device) -> None:
    """A request that is answered only when those before it have gone on as far as they can."""
    device.give("passing", 5)
    assert device.answer("passing") == after([5])


def test_steps_go_on_from_the_states_and_requests_without_a_sequence_from_zeros() -> None:
    def story(device: Device) -> None:
        for position in range(4):
            device.give(f"p{position}", position + 1, step=step_of(position))
            assert device.answer(f"p{position}") == after(range(1, position + 2))
            device.give(f"q{position}", 7, step=step_of(position, OTHER))
            assert device.answer(f"q{position}") == after([7] * (position + 1))
            device.give(f"alone{position}", 5)
            assert device.answer(f"alone{position}") == after([5])
        before_too = 2
        assert device.executor.count_sequences() == (2, 2 * before_too * 8, 0)
        assert device.executor.count_waiting() == (0, 0)

    on_device(story)


def test_a_device_whose_part_of_the_model_has_no_states_makes_every_step() -> None:
    def story(device: Device) -> None:
        device.install("front", stateless_program())
        for request, position in zip("pqrs", (0, 1, 2, 1), strict=True):
            device.give(request, position, step=step_of(position), deployment="front")
            assert device.answer(request) == 2 * position
        assert device.executor.count_sequences() == (0, 0, 0)

    on_device(story)


def test_what_is_kept_is_no_longer_held_by_requests() -> None:
    """The bytes of states count once, and not as those of requests."""

    def story(device: Device) -> None:
        device.give("0", 1, step=step_of(0))
        device.answer("0")
        device.give("1", 1, Z, step=step_of(1))
        pass_by(device)
        assert device.executor.count_waiting() == (1, 8)

    on_device(story)


def test_a_step_that_comes_early_waits_for_the_one_before_it() -> None:
    def story(device: Device) -> None:
        device.give("first", 1, X, step=step_of(0))
        device.give("second", 2, step=step_of(1))
        device.give("third", 3, step=step_of(2))
        pass_by(device)
        device.give("first", 1, Z, step=step_of(0))
        for count, name in enumerate(("first", "second", "third"), 1):
            assert device.answer(name) == after(range(1, count + 1))

    on_device(story)


def cancel(device: Device) -> None:
    device.executor.cancel(f"{GATE}/0/first")


def contradict(device: Device) -> None:
    device.give("first", 1, Z, step=step_of(5))
    assert "makes other steps" in device.failure("first").error


@pytest.mark.parametrize("end", [cancel, contradict])
def test_a_step_whose_predecessor_ends_without_states_is_told_that_they_are_lost(
    end: Callable[[Device], None],
) -> None:
    def story(device: Device) -> None:
        device.give("first", 1, X, step=step_of(0))
        device.give("second", 2, step=step_of(1))
        pass_by(device)
        end(device)
        failed = device.failure("second")
        assert failed.lost_state and failed.stale and not failed.crashed
        device.give("again", 1, step=step_of(0))
        assert device.answer("again") == after([1])

    on_device(story)


def test_attempts_at_the_same_step_give_the_same_answer_whenever_they_come() -> None:
    def story(device: Device) -> None:
        device.give("0", 1, step=step_of(0))
        device.answer("0")
        device.give("slow", 2, X, step=step_of(1))
        device.give("quick", 2, step=step_of(1))
        assert device.answer("quick") == after([1, 2])
        device.give("slow", 2, Z, step=step_of(1))
        assert device.answer("slow") == after([1, 2])
        device.give("late", 2, step=step_of(1))
        assert device.answer("late") == after([1, 2])
        device.give("next", 3, step=step_of(2))
        assert device.answer("next") == after([1, 2, 3])

    on_device(story)


def test_a_step_that_was_begun_anew_leaves_nothing_of_what_it_was_before() -> None:
    """Its client has changed its mind, and the second attempt fails here though another device has answered it."""

    def story(device: Device) -> None:
        device.give("0", 1, step=step_of(0))
        device.answer("0")
        device.give("1", 2, step=step_of(1))
        device.answer("1")
        device.give("other", 9, X, step=step_of(1))
        pass_by(device)
        device.executor.cancel(f"{GATE}/0/other")
        device.give("2", 3, step=step_of(2))
        assert device.failure("2").lost_state

    on_device(story)


def test_a_gateway_has_sequences_of_its_own_only() -> None:
    def story(device: Device) -> None:
        device.give("0", 1, step=step_of(0, "other/0/p"))
        failed = device.failure("0")
        assert "another gateway's sequence" in failed.error and not failed.stale and not failed.lost_state
        assert device.executor.count_waiting() == (0, 0)
        assert device.executor.count_sequences() == (0, 0, 0)

    on_device(story)


def retire(device: Device) -> None:
    device.executor.retire("m", EPOCH)
    device.install()


def end(device: Device) -> None:
    device.executor.end_sequence(step_of(0).sequence)


def lose(device: Device) -> None:
    device.executor.lost(GATE)


@pytest.mark.parametrize("drop", [retire, end, lose])
def test_states_go_with_their_sequence_their_epoch_and_their_gateway(drop: Callable[[Device], None]) -> None:
    def story(device: Device) -> None:
        device.give("0", 1, step=step_of(0))
        device.answer("0")
        device.executor.end_sequence(OTHER)
        device.executor.lost("another gate")
        assert device.executor.count_sequences()[0] == 1
        drop(device)
        assert device.executor.count_sequences() == (0, 0, 0)
        device.give("1", 1, step=step_of(1))
        assert device.failure("1").lost_state

    on_device(story)


def test_a_device_that_has_no_room_is_tried_again_and_has_lost_nothing() -> None:
    def story(device: Device) -> None:
        device.give("p", 1, step=step_of(0))
        device.answer("p")
        device.give("q", 1, step=step_of(0, OTHER))
        failed = device.failure("q")
        assert failed.stale and failed.no_room and not failed.lost_state and "all are in use" in failed.error
        device.give("p1", 1, step=step_of(1))
        assert device.answer("p1") == after([1, 1])

    on_device(story, sequences=1)


def test_a_step_that_waits_for_another_keeps_no_other_deployment_waiting() -> None:
    def story(device: Device) -> None:
        device.give("first", 1, X, step=step_of(0))
        device.give("second", 2, step=step_of(1))
        for number in range(5):
            device.give(f"other {number}", number, deployment="other")
            assert device.answer(f"other {number}") == after([number])
        device.give("first", 1, Z, step=step_of(0))
        assert device.answer("first") == after([1])
        assert device.answer("second") == after([1, 2])

    on_device(story, deployments=("m", "other"))


def test_a_kind_of_steps_that_is_not_installed_yet_is_refused_and_harms_nothing() -> None:
    def story(device: Device) -> None:
        device.give("p", 1, step=step_of(0))
        device.answer("p")
        together = Tensors("m", EPOCH, f"{GATE}/0/both", X, (), steps=(step_of(1), step_of(0, OTHER)))
        device.executor.deliver(together, [np.ones(2, np.float32)], GATE)
        assert device.failure("both").lost_state
        device.give("p1", 1, step=step_of(1))
        assert device.answer("p1") == after([1, 1])

    on_device(story)
