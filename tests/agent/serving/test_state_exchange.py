"""Carried states: whatever is lost and whenever, a device that goes on with a sequence has exactly the rows of its tokens,
as many as it says; and with mirrors that are up to date nothing is read again after a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.serving import mirrors as mirroring
from edgepart.agent.serving import state_exchange
from edgepart.agent.wire.inference import Epoch, MirroredRows, ResumeSequence, SentRows, WantRows
from edgepart.planner.errors import FrameError, StateLost
from edgepart.planner.plans.plan import Program
from tests.agent.serving.carrying import CACHES, GATE, HEADS, ROWS, SEQUENCE, SIZE, Held, World

NAMES = "abcd"


def shares(chance: Random, names: list[str]) -> dict[str, tuple[int, int]]:
    """Each device has some heads; devices without heads have no program."""
    used = chance.sample(names, chance.randint(1, len(names)))
    cuts = sorted(chance.sample(range(1, HEADS), len(used) - 1))
    return dict(zip(used, zip([0, *cuts], [*cuts, HEADS], strict=True), strict=True))


def mirrors(chance: Random, names: list[str], used: Mapping[str, object]) -> dict[str, str]:
    return {name: chance.choice([one for one in names if one != name]) for name in used if len(names) > 1}


def switched(world: World, *, mirrored: bool = True) -> None:
    names = sorted(world.nodes)
    found = shares(world.chance, names)
    world.switch(found, mirrors(world.chance, names, found) if mirrored else {})


@given(st.integers(0, 2**32), st.lists(st.integers(0, 9), min_size=20, max_size=120))
@settings(deadline=None, max_examples=150)
def test_a_sequence_goes_on_with_the_rows_of_its_tokens_whatever_is_lost(seed: int, acts: list[int]) -> None:
    chance = Random(seed)
    world = World(NAMES, chance)
    switched(world)
    for act in acts:
        match act:
            case 0 if len(world.nodes) > 1:
                world.kill(chance.choice(sorted(world.nodes)))
                switched(world, mirrored=chance.random() < 0.7)
            case 1:
                switched(world)
            case 2:
                world.cut(chance.randrange(len(world.tokens) + 1))
            case 3 | 4:
                world.mirror()
            case 5:
                world.deliver(chance.randrange(6))
            case 6 if world.tokens:
                world.nodes[chance.choice(sorted(world.shares))].kept.retire(*world.plan)
            case _ if len(world.tokens) < ROWS:
                world.read(chance.randrange(5))
    assert not world.faults


@given(st.integers(0, 2**32), st.integers(1, ROWS - 2))
@settings(deadline=None, max_examples=60)
def test_with_mirrors_that_are_up_to_date_no_token_is_read_again(seed: int, count: int) -> None:
    chance = Random(seed)
    world = World(NAMES, chance)
    switched(world)
    for token in range(count):
        world.read(token % 5)
    world.mirror(ROWS)
    world.deliver()
    world.kill(chance.choice(sorted(world.shares)))
    switched(world)
    assert world.read(3) == 0


def test_a_plan_that_is_only_faster_takes_the_states_along_without_mirrors() -> None:
    world = World(NAMES, Random(1))
    world.switch({"a": (0, 3), "b": (3, 4)}, {})
    for token in range(9):
        world.read(token)
    world.switch({"c": (0, 2), "a": (2, 4)}, {})
    assert world.read(1) == 0


def test_no_row_travels_that_is_here_already_or_has_come_from_another() -> None:
    world = World("abc", Random(1))
    world.switch({"a": (0, 2), "b": (2, 4)}, {"a": "b", "b": "c"})
    for token in range(9):
        world.read(token)
    world.mirror(ROWS)
    world.deliver()
    world.switch({"a": (0, 1), "b": (1, 4)}, {"a": "b", "b": "c"})
    assert world.read(1) == 0  # By both plans there are rows now.
    world.mirror(ROWS)
    world.deliver()
    world.kill("b")
    world.carried_bytes = 0
    world.switch({"a": (0, 2), "c": (2, 4)}, {})
    assert world.read(1) == 0
    assert world.carried_bytes == len(CACHES) * 10 * SIZE * 4  # One head, which `c` sends to `a`.


def test_without_mirrors_all_is_read_again_after_a_loss() -> None:
    world = World(NAMES, Random(1))
    world.switch({"a": (0, 3), "b": (3, 4)}, {})
    for token in range(9):
        world.read(token)
    world.kill("b")
    world.switch({"a": (0, 4)}, {})
    assert world.read(1) == 9


def test_what_a_mirror_lags_behind_is_read_again() -> None:
    world = World(NAMES, Random(1))
    world.switch({"a": (0, 3), "b": (3, 4)}, {"a": "b", "b": "c"})
    for token in range(7):
        world.read(token)
    world.mirror()
    world.deliver()
    world.read(2)
    world.read(4)
    world.kill("b")
    world.switch({"a": (0, 4)}, {})
    assert world.read(1) == 2


@pytest.mark.parametrize("mirrored", [False, True])
def test_rows_of_tokens_that_were_given_up_are_not_taken_for_others(mirrored: bool) -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {"a": "b"})
    for token in range(6):
        world.read(token)
    world.mirror()
    world.deliver()
    world.cut(3)
    for token in (9, 8, 7, 6):
        world.read(token)
    if mirrored:
        world.mirror()
        world.deliver()
    world.kill("a")
    world.switch({"b": (0, 4)}, {})
    assert world.read(1) == (0 if mirrored else 4)


@pytest.mark.parametrize("lost", [False, True])
def test_what_a_cut_leaves_is_taken_along_before_a_step_is_made_behind_it(lost: bool) -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {"a": "b"})
    for token in range(6):
        world.read(token)
    world.mirror()
    world.deliver()
    world.cut(5)
    if lost:
        world.kill("a")
    world.switch({"b": (0, 4)}, {})
    assert world.read(9) == 0


def test_rows_go_to_a_mirror_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {"a": "b"})
    for token in range(5):
        world.read(token)
    monkeypatch.setattr(mirroring, "MIRRORED_BYTES", 2 * 2 * 4 * 2 * 4)
    exchange = world.nodes["a"].exchange
    assert [exchange.send_grown() for _ in range(4)] == [True, True, True, False]
    sent = [message for message, _ in world.wires["a", "b"]]
    assert [(one.begin, one.position) for one in sent if isinstance(one, MirroredRows)] == [
        (0, 2),
        (2, 4),
        (4, 5),
    ]


def test_a_mirror_drops_what_its_device_drops() -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {"a": "b"})
    world.read(1)
    world.mirror()
    world.deliver()
    mirror = world.nodes["b"].exchange
    assert mirror.mirrors.nbytes > 0
    world.nodes["a"].kept.end(SEQUENCE)
    world.mirror()
    world.deliver()
    assert mirror.mirrors.nbytes == 0


@pytest.mark.parametrize("what", ["end", "lose", "retire"])
def test_copies_go_with_their_sequence_its_gateway_and_their_plan(what: str) -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {"a": "b"})
    world.read(1)
    world.mirror()
    world.deliver()
    mirror = world.nodes["b"].exchange
    {"end": lambda: mirror.end(SEQUENCE), "lose": lambda: mirror.lose(GATE)}.get(
        what, lambda: mirror.retire(world.plan)
    )()
    assert mirror.mirrors.nbytes == 0


def test_large_answers_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_exchange, "SENT_BYTES", 1)
    world = World("abc", Random(1))
    world.switch({"a": (0, 2), "b": (2, 4)}, {})
    for token in range(6):
        world.read(token)
    world.switch({"c": (0, 4)}, {})
    assert world.read(1) == 0


def test_a_device_that_is_lost_while_it_is_asked_keeps_nobody_waiting() -> None:
    world = World("abc", Random(1))
    world.switch({"a": (0, 2), "b": (2, 4)}, {})
    for token in range(6):
        world.read(token)
    world.switch({"c": (0, 4)}, {})
    asked = ResumeSequence(*world.plan, SEQUENCE, 1, 6, ("a", "b", "c"))
    world.nodes["c"].exchange.take(asked, (), GATE, 0.0)
    world.kill("a")
    world.deliver()
    assert world.resumed == {"c": 0}


# What peers may send


def rows(count: int = 2, heads: int = 2) -> list[np.ndarray]:
    return [np.zeros((1, heads, count, 2), np.float32)] * 2


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (MirroredRows("m", Epoch(1, 1), SEQUENCE, 1, 0, 3), rows(2)),
        (MirroredRows("m", Epoch(1, 1), SEQUENCE, 1, 0, 2), rows(2, 3)),
        (MirroredRows("m", Epoch(1, 1), SEQUENCE, 1, 0, 2), rows(2)[:1]),
        (MirroredRows("m", Epoch(1, 1), SEQUENCE, 1, 0, 2), [one.astype("f8") for one in rows(2)]),
        (MirroredRows("m", Epoch(1, 1), SEQUENCE, 1, 0, 2), [None, None]),
        (MirroredRows("m", Epoch(1, 1), SEQUENCE, 1, 4, 2), rows(2)),
        (MirroredRows("m", Epoch(1, 1), SEQUENCE, 1, ROWS, ROWS + 2), rows(2)),
    ],
)
def test_rows_that_do_not_fit_the_plan_are_refused(message: MirroredRows, values: list[np.ndarray]) -> None:
    world = World("abc", Random(1))
    world.switch({"a": (0, 2), "b": (2, 4)}, {"a": "b"})
    with pytest.raises(FrameError):
        world.nodes["b"].exchange.take(message, values, "a", 0.0)
    assert world.nodes["b"].exchange.mirrors.nbytes == 0


@pytest.mark.parametrize(
    "message",
    [
        MirroredRows("m", Epoch(9, 9), SEQUENCE, 1, 0, 2),
        MirroredRows("other", Epoch(1, 1), SEQUENCE, 1, 0, 2),
        WantRows("m", Epoch(9, 9), SEQUENCE, 1, 2),
    ],
)
def test_messages_of_plans_that_are_not_held_are_late(message: MirroredRows | WantRows) -> None:
    world = World("abc", Random(1))
    world.switch({"a": (0, 2), "b": (2, 4)}, {"a": "b"})
    with pytest.raises(StateLost):
        world.nodes["b"].exchange.take(message, rows(2), "a", 0.0)


def test_only_the_mirror_of_a_device_takes_its_rows() -> None:
    world = World("abc", Random(1))
    world.switch({"a": (0, 2), "b": (2, 4)}, {"a": "b"})
    message = MirroredRows("m", Epoch(1, 1), SEQUENCE, 1, 0, 2)
    with pytest.raises(FrameError, match="not its mirror"):
        world.nodes["c"].exchange.take(message, rows(2), "a", 0.0)


@pytest.mark.parametrize("what", ["end", "lose", "retire"])
def test_nothing_is_waited_for_that_is_of_no_use_any_more(what: str) -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {})
    world.read(1)
    world.switch({"b": (0, 4)}, {})
    device = world.nodes["b"].exchange
    device.take(ResumeSequence(*world.plan, SEQUENCE, 1, 1, ("a",)), (), GATE, 0.0)
    assert device._resumptions and not world.resumed
    {"end": lambda: device.end(SEQUENCE), "lose": lambda: device.lose(GATE)}.get(
        what, lambda: device.retire(world.plan)
    )()
    assert not device._resumptions
    assert world.resumed == ({"b": 0} if what == "retire" else {})


def test_rows_by_a_plan_that_is_not_held_are_late_and_keep_nobody_waiting() -> None:
    world = World("abc", Random(1))
    world.switch({"a": (0, 4)}, {})
    world.read(1)
    before = world.plan
    world.switch({"c": (0, 4)}, {})
    world.nodes["c"].retire(before)
    device = world.nodes["c"].exchange
    device.take(ResumeSequence(*world.plan, SEQUENCE, 1, 1, ("a",)), (), GATE, 0.0)
    with pytest.raises(StateLost):
        device.take(SentRows(*before, SEQUENCE, 1, "a", 1, (0, 1), question=1), (), "a", 0.0)
    assert world.resumed == {"c": 0}


def test_rows_are_not_written_while_a_step_reads_them() -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {"a": "b"})
    world.read(1)
    world.mirror()
    world.deliver()
    world.switch({"b": (0, 4)}, {})
    node = world.nodes["b"]
    node.busy.add((*world.plan, SEQUENCE))
    asked = ResumeSequence(*world.plan, SEQUENCE, 1, 1, ("a", "b"))
    with pytest.raises(StateLost, match="under way"):
        node.exchange.take(asked, (), GATE, 0.0)
    assert world.resumed == {"b": 0} and not node.kept.names(world.plan)
    node.busy.clear()
    node.exchange.take(asked, (), GATE, 0.0)
    assert world.resumed == {"b": 1}


def test_a_device_that_keeps_no_states_does_not_hold_up_those_that_do() -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {})
    world.read(1)
    node, held = world.nodes["b"], world.nodes["b"].plans[world.plan]
    programs = {**held.plan.programs, "b": Program("b", (), (), 0, 0)}
    node.plans[world.plan] = Held(replace(held.plan, programs=programs), held.nodes)
    node.exchange.take(ResumeSequence(*world.plan, SEQUENCE, 1, 1, ("a", "b")), (), GATE, 0.0)
    assert world.resumed == {"b": 1}


@pytest.mark.parametrize(("question", "pieces"), [(1, (5,)), (2, (5,)), (2, (0,)), (2, (0, 1, 1))])
def test_an_answer_of_other_pieces_than_there_are_is_refused_and_ends_nothing(
    question: int, pieces: tuple[int, ...]
) -> None:
    world = World("abc", Random(1))
    world.switch({"a": (0, 2), "b": (2, 4)}, {})
    world.read(1)
    world.switch({"c": (0, 4)}, {})
    device = world.nodes["c"].exchange
    device.take(ResumeSequence(*world.plan, SEQUENCE, 1, 1, ("a", "b", "c")), (), GATE, 0.0)
    offer = SentRows("m", Epoch(1, 1), SEQUENCE, 1, "a", 1, (0, 1), question=1)
    other = replace(offer, device="b")
    if question == 2:
        device.take(offer, (), "a", 0.0)
        device.take(other, (), "b", 0.0)
    with pytest.raises(FrameError):
        device.take(replace(offer, pieces=pieces, question=question), rows(1), "a", 0.0)
    end = SentRows("m", Epoch(1, 1), SEQUENCE, 1, "", 0, question=question)
    device.take(end, (), "b", 0.0)
    assert world.resumed == {"c": 0}


def test_nobody_but_its_gateway_resumes_a_sequence() -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {})
    world.read(1)
    asked = ResumeSequence(*world.plan, SEQUENCE, 1, 1, ("a",))
    world.nodes["a"].exchange.take(asked, (), "b", 0.0)
    assert not world.resumed


def test_more_sequences_than_a_device_may_keep_are_not_mirrored() -> None:
    world = World("ab", Random(1))
    world.switch({"a": (0, 4)}, {"a": "b"})
    mirror = world.nodes["b"].exchange
    for number in range(5):
        message = MirroredRows("m", Epoch(1, 1), f"{GATE}/0/{number}", 1, 0, 2)
        mirror.take(message, rows(2, 4), "a", 0.0)
    assert mirror.mirrors.nbytes == 2 * 2 * HEADS * ROWS * 2 * 4
