"""Kept sequences: whatever steps are repeated, undone or never finished, a step begins with the states that the steps
before it left, or is told that they are lost."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgepart.agent.execution.places import make_first_states
from edgepart.agent.execution.sequences import SPARED_S, KeptSequences, SequenceKey
from edgepart.agent.wire.inference import Epoch, SequenceStep
from edgepart.planner.errors import StateLost, Unavailable
from edgepart.planner.plans.plan import KeptPiece, Piece, Program, widen
from edgepart.planner.region import Array, Region

E1, E2 = Epoch(1, 1), Epoch(1, 2)
ROWS = 40
BUFFER, SUM = "buffer", "sum"
"""A state whose rows are written in place, one for each token, and a number that depends on all tokens."""


@dataclass
class Prepared:
    """As much of a RunnableProgram as keeping states takes."""

    program: Program
    full: bool = False
    """Whether there is no memory for another array."""
    most_bytes: float = np.inf
    """The largest array for which there is memory."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if self.full or np.prod(shape) * dtype.itemsize > self.most_bytes:
            raise MemoryError("1 MiB is shared already")
        return np.full(shape, 7, dtype)


def prepared(*kinds: str, sequences: int = 99) -> Any:
    extents = {BUFFER: ROWS, SUM: 1}
    kept = []
    for kind in kinds:
        region = Region.full((extents[kind],))
        before, after = Piece(f"past {kind}", region), Piece(kind, region)
        kept.append(KeptPiece(before, after, "double", 8 * extents[kind], kind == BUFFER))
    return Prepared(Program("a", (), (), 0, 0, kept=tuple(kept), sequences=sequences))


def step_of(name: str, position: int = 0, tokens: int = 1) -> SequenceStep:
    return SequenceStep(f"gate/0/{name}", position, position + tokens)


def key_of(name: str, epoch: Epoch = E1) -> SequenceKey:
    return ("m", epoch, f"gate/0/{name}")


def compute(kinds: Sequence[str], began: Sequence[Any], position: int, tokens: Sequence[int]) -> list[Array]:
    """What a step makes of the states: a buffer is written where it is, a sum is another array."""
    ended = []
    for kind, value in zip(kinds, began, strict=True):
        if kind == BUFFER:
            value[position : position + len(tokens)] = tokens
            ended.append(value)
        else:
            ended.append(np.array([digest([value[0], *tokens])]))
    return ended


def digest(tokens: Sequence[float]) -> float:
    """A number by which different short lists of tokens differ."""
    total = 0.0
    for token in tokens:
        total = total * 4 % 2**48 + token
    return total


def assert_states(kinds: Sequence[str], began: Sequence[Any], before: Sequence[int]) -> None:
    for kind, value in zip(kinds, began, strict=True):
        seen = value[: len(before)].tolist() if kind == BUFFER else value.tolist()
        assert seen == (list(before) if kind == BUFFER else [digest([0, *before])])


@dataclass
class Twin:
    """What was done of a sequence, in plain words."""

    tokens: list[int] = field(default_factory=list)
    before: int = 0
    """How many there were before the step that was finished last."""


@dataclass(frozen=True)
class Move:
    name: str
    back: int
    """How far before the end of what is known the step begins; -1 for after it."""
    tokens: tuple[int, ...]
    finished: bool


moves = st.builds(
    Move,
    st.sampled_from("pq"),
    st.sampled_from([0, 0, 0, 1, 1, 2, 3, -1, ROWS]),
    st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple),
    st.booleans() | st.just(True),
)


@settings(max_examples=300)
@given(st.sampled_from([(SUM,), (BUFFER,), (BUFFER, BUFFER), (SUM, BUFFER)]), st.lists(moves, max_size=15))
@example(  # A step that was finished is repeated with other tokens, and this time it is not finished.
    (SUM,), [Move("p", 0, (1,), True), Move("p", 1, (2,), False), Move("p", -1, (1,), True)]
)
def test_a_step_begins_with_what_the_steps_before_it_left_or_it_is_told(
    kinds: tuple[str, ...], drawn: list[Move]
) -> None:
    device, program, twins = KeptSequences(), prepared(*kinds), {name: Twin() for name in "pq"}
    for now, move in enumerate(drawn):
        twin, key = twins[move.name], key_of(move.name)
        position = max(0, len(twin.tokens) - move.back)
        step = step_of(move.name, position, len(move.tokens))
        known = {0, len(twin.tokens), twin.before}
        if SUM not in kinds:
            known.update(range(len(twin.tokens)))
        try:
            began = device.begin(key, step, program, float(now))
        except StateLost:
            assert position not in known or position > len(twin.tokens)
            continue
        assert position <= len(twin.tokens)
        assert_states(kinds, began, twin.tokens[:position])
        twin.tokens = twin.tokens[:position]
        ended = compute(kinds, began, position, move.tokens)
        if move.finished:
            device.finish(key, step, program, began, ended, float(now))
            twin.tokens, twin.before = [*twin.tokens, *move.tokens], position


def test_a_sequence_begins_with_zeros_and_one_that_is_not_here_is_lost() -> None:
    device, program = KeptSequences(), prepared(SUM, BUFFER)
    for value in device.begin(key_of("p"), step_of("p"), program, 0.0):
        assert isinstance(value, np.ndarray) and not value.any() and value.dtype == np.float64
    with pytest.raises(StateLost, match="not kept here"):
        device.begin(key_of("q"), step_of("q", 1), program, 0.0)
    with pytest.raises(Unavailable, match="no memory for the states of another sequence: 1 MiB"):
        make_first_states(Prepared(program.program, full=True))  # type: ignore[arg-type]


class Room:
    """A device with room for two sequences."""

    def __init__(self) -> None:
        self.device, self.program = KeptSequences(), prepared(SUM, sequences=2)

    def step(self, name: str, position: int, now: float, busy: Sequence[str] = (), epoch: Epoch = E1) -> None:
        key, step = key_of(name, epoch), step_of(name, position)
        others = [key_of(one, epoch) for one in busy]
        began = self.device.begin(key, step, self.program, now, others)
        self.device.finish(key, step, self.program, began, [np.zeros(1)], now)

    def knows(self, name: str, position: int = 1, epoch: Epoch = E1) -> bool:
        try:
            self.device.begin(key_of(name, epoch), step_of(name, position), self.program, 0.0)
        except StateLost:
            return False
        return True


def test_the_one_that_was_idle_longest_makes_room_for_another() -> None:
    room = Room()
    room.step("old", 0, now=0.0)
    room.step("new", 0, now=1.0)
    room.step("old", 1, now=2.0)
    room.step("third", 0, now=1.0 + SPARED_S)
    assert (room.knows("old", 2), room.knows("new"), room.knows("third")) == (True, False, True)
    assert (len(room.device), room.device.evictions) == (2, 1)


def test_sequences_of_which_a_step_was_made_lately_keep_their_plan() -> None:
    room = Room()
    room.step("p", 0, now=1.0)
    room.step("q", 0, now=2.0, epoch=E2)
    room.step("q", 1, now=2.0, epoch=E2)
    room.step("r", 0, now=2.0, epoch=E2)
    assert room.device.continued(1.0) == {key_of("p", E1)[:2]: 1, key_of("q", E2)[:2]: 2}
    assert room.device.continued(1.5) == {key_of("q", E2)[:2]: 2}
    assert room.device.continued(2.5) == {}


@pytest.mark.parametrize(("late", "busy"), [(-0.001, ()), (0.0, ("p",))], ids=["recent", "busy"])
def test_those_in_use_are_spared(late: float, busy: Sequence[str]) -> None:
    room = Room()
    room.step("p", 0, now=0.0)
    room.step("q", 0, now=0.0 if not busy else SPARED_S)
    with pytest.raises(Unavailable, match=r"states of 2 sequences \(--sequences\), and all are in use"):
        room.step("third", 0, now=SPARED_S + late, busy=busy)
    assert (len(room.device), room.device.evictions) == (2, 0)
    assert room.knows("p") and room.knows("q")


def test_a_sequence_whose_first_step_is_under_way_takes_room() -> None:
    room = Room()
    room.step("p", 0, now=0.0)
    with pytest.raises(Unavailable):
        room.step("third", 0, now=1.0, busy=["q"])
    room.step("q", 0, now=1.0, busy=["q"])  # It is no other one than itself.
    assert len(room.device) == 2


def test_other_epochs_have_room_of_their_own() -> None:
    room = Room()
    for epoch in (E1, E2):
        for name in "pq":
            room.step(name, 0, now=0.0, epoch=epoch)
    assert (len(room.device), room.device.evictions) == (4, 0)


def test_what_is_kept_is_counted_with_what_was_before() -> None:
    device, program = KeptSequences(), prepared(SUM, BUFFER)
    for position in (0, 1):
        step = step_of("p", position)
        began = device.begin(key_of("p"), step, program, 0.0)
        device.finish(key_of("p"), step, program, began, [np.zeros(1), began[1]], 0.0)
    assert device.nbytes == 8 * (1 + 1 + ROWS)


def test_sequences_end_one_by_one_with_their_epoch_and_with_their_gateway() -> None:
    room = Room()
    for name, epoch in (("p", E1), ("q", E1), ("p", E2)):
        room.step(name, 0, now=0.0, epoch=epoch)
    room.device.retire("other", E1)
    room.device.lose("gat")
    assert len(room.device) == 3
    room.device.end("gate/0/p")
    assert not room.knows("p") and not room.knows("p", epoch=E2) and room.knows("q")
    room.step("r", 0, now=0.0, epoch=E2)
    room.device.retire("m", E1)
    assert not room.knows("q") and room.knows("r", epoch=E2)
    room.device.lose("gate")
    assert not room.knows("r", epoch=E2) and len(room.device) == 0
    room.device.end("gate/0/p")


def test_a_step_under_way_leaves_nothing_of_a_sequence_that_has_ended() -> None:
    room = Room()
    began = room.device.begin(key_of("p"), step_of("p"), room.program, 0.0)
    room.device.end("gate/0/p")
    room.device.finish(key_of("p"), step_of("p"), room.program, began, [np.zeros(1)], 0.0)
    assert len(room.device) == 0


PLACES = 3


def side_by_side(program: Any) -> Any:
    """The program of steps in PLACES sequences."""
    return Prepared(replace(program.program, kept=widen(program.program.kept, PLACES)))


def two_dimensional(sequences: int = 99) -> Any:
    """A program with two buffers of a row for each token, which have an axis of sequences."""
    kept = tuple(
        KeptPiece(Piece(f"past {n}", region), Piece(f"present {n}", region), "double", 8 * ROWS, True)
        for n, region in enumerate([Region.full((1, ROWS))] * 2)
    )
    return Prepared(Program("a", (), (), 0, 0, kept=kept, sequences=sequences))


def placed(place: int, position: int = 0, row: str = "row") -> SequenceStep:
    return step_of(f"{row}/1.{place}", position)


def of(*steps: SequenceStep) -> dict[SequenceKey, SequenceStep]:
    return {("m", E1, step.sequence): step for step in steps}


def begin(device: KeptSequences, program: Any, step: SequenceStep, batch: Any) -> Sequence[Any]:
    ((key, _),) = of(step).items()
    began = device.begin(key, step, program, 0.0, batch=batch.program)
    device.finish(key, step, program, began, began, 0.0)
    return began


def test_sequences_that_lie_side_by_side_share_arrays_each_at_its_place() -> None:
    device, program = KeptSequences(), two_dimensional()
    batch = side_by_side(program)
    for place in (2, 0):
        for value in begin(device, program, placed(place), batch):
            assert value.shape == (1, ROWS) and not value.any()
            value[:, 0] = 1 + place
    steps = of(placed(2, 1), placed(0, 1))
    began: Any = device.begin_batch(steps, batch, 1.0)
    assert [value.shape for value in began] == [(PLACES, ROWS)] * 2
    assert all(value[2, 0] == 3 and value[0, 0] == 1 for value in began)
    began[1][2, 1] = 9
    device.finish_batch(steps, batch, (), 1.0)
    assert device.nbytes == 2 * 2 * ROWS * 8
    # Each goes on alone with what the common step has left.
    alone: Any = begin(device, program, placed(2, 2), batch)
    assert alone[1][0, :2].tolist() == [3, 9]


def test_a_step_of_several_needs_all_of_them_side_by_side_and_at_the_right_positions() -> None:
    device, program = KeptSequences(), two_dimensional()
    batch = side_by_side(program)
    for step in (placed(0), placed(1), placed(1, row="another row"), step_of("by itself")):
        begin(device, program, step, batch)
    for wrong in (
        (placed(0, 1), placed(2, 1)),  # was never begun
        (placed(0, 1), placed(1, 1, row="another row")),
        (placed(0, 1), step_of("by itself", 1)),
        (placed(0, 1), placed(1, 2)),  # ahead of what it has read
    ):
        with pytest.raises(StateLost):
            device.begin_batch(of(*wrong), batch, 1.0)
    assert device.begin_batch(of(placed(0, 1), placed(1, 0)), batch, 1.0)  # is made again
    device.end(placed(1).sequence)
    with pytest.raises(StateLost):
        device.begin_batch(of(placed(0, 1), placed(1, 1)), batch, 1.0)


def one_number(sequences: int = 99) -> Any:
    """A program with a number that depends on all tokens, which have an axis of sequences."""
    region = Region.full((1, 1))
    kept = KeptPiece(Piece("past sum", region), Piece("sum", region), "double", 8)
    return Prepared(Program("a", (), (), 0, 0, kept=(kept,), sequences=sequences))


@dataclass(frozen=True)
class CommonMove:
    """A step in each of the sequences at these places: alone if there is one, else by one request."""

    places: frozenset[int]
    again: bool
    """Whether the steps are those that were made last, if they can be made again."""
    token: int
    finished: bool


common_moves = st.builds(
    CommonMove,
    st.frozensets(st.integers(0, PLACES - 1), min_size=1),
    st.booleans(),
    st.integers(1, 3),
    st.booleans() | st.just(True),
)


@settings(max_examples=300)
@given(st.lists(common_moves, max_size=20))
def test_states_that_are_not_written_in_place_go_through_common_steps_and_single_ones(
    story: list[CommonMove],
) -> None:
    device, program = KeptSequences(), one_number()
    batch, twins = side_by_side(program), [Twin() for _ in range(PLACES)]
    for place in range(PLACES):
        step = placed(place)
        ((key, _),) = of(step).items()
        began: Any = device.begin(key, step, program, 0.0, batch=batch.program)
        device.finish(key, step, program, began, [began[0] * 4 + 1], 0.0)
        twins[place].tokens.append(1)
    for move in story:
        for place in move.places:
            twin = twins[place]
            if move.again and twin.before < len(twin.tokens):
                del twin.tokens[twin.before :]
        steps = of(*(placed(place, len(twins[place].tokens)) for place in sorted(move.places)))
        together = len(move.places) > 1
        if together:
            began = device.begin_batch(steps, batch, 0.0)
            seen = {place: began[0][place, 0] for place in move.places}
        else:
            ((key, step),) = steps.items()
            began = device.begin(key, step, program, 0.0, batch=batch.program)
            seen = dict.fromkeys(move.places, began[0][0, 0])
        assert seen == {place: digest(twins[place].tokens) for place in move.places}
        # An unfinished step leaves what was before it, which cannot be undone once more.
        for place in move.places:
            twins[place].before = len(twins[place].tokens)
        if not move.finished:
            continue
        ended = [began[0] * 4 % 2**48 + move.token]
        if together:
            device.finish_batch(steps, batch, ended, 0.0)
        else:
            device.finish(key, step, program, began, ended, 0.0)
        for place in move.places:
            twins[place].tokens.append(move.token)
        kept = device._kept.values()
        rows = {one.row for one in kept} | {one.before.row for one in kept if one.before is not None}
        assert not together or len(rows - {None}) <= 2, "Arrays of earlier rows are not kept in memory."


def test_a_row_of_states_that_are_not_written_in_place_is_read_where_the_last_common_step_left_it() -> None:
    device, program = KeptSequences(), one_number()
    batch = side_by_side(program)
    for place in (0, 2):
        begin(device, program, placed(place), batch)
    steps = of(placed(0, 1), placed(2, 1))
    ended = [np.arange(3.0).reshape(3, 1)]
    device.finish_batch(steps, batch, ended, 0.0)
    assert device.nbytes == 4 * 8
    assert device.begin_batch(of(placed(0, 2), placed(2, 2)), batch, 0.0)[0] is ended[0]
    with pytest.raises(StateLost):  # Nobody knows what was before.
        device.begin_batch(of(placed(0, 0), placed(2, 2)), batch, 0.0)


def test_common_steps_need_a_row_with_their_places() -> None:
    device, program = KeptSequences(), one_number()
    batch = side_by_side(program)
    for step in (placed(0), placed(PLACES), placed(1, row="another row"), step_of("by itself")):
        begin(device, program, step, batch)
    for wrong in (placed(PLACES, 1), placed(1, 1, row="another row"), step_of("by itself", 1), placed(2, 1)):
        with pytest.raises(StateLost):
            device.begin_batch(of(placed(0, 1), wrong), batch, 1.0)


def test_without_memory_for_a_row_that_is_joined_steps_are_made_one_by_one() -> None:
    device, program = KeptSequences(), one_number()
    batch = side_by_side(program)
    for place in (0, 1):
        begin(device, program, placed(place), batch)
    full: Any = Prepared(batch.program, full=True)
    with pytest.raises(StateLost, match="no memory"):
        device.begin_batch(of(placed(0, 1), placed(1, 1)), full, 0.0)
    begin(device, program, placed(0, 1), batch)  # Their states are where they were.


def test_without_memory_for_copies_a_step_cannot_be_made_again() -> None:
    device, program = KeptSequences(), one_number()
    batch = side_by_side(program)
    for place in (0, 1):
        begin(device, program, placed(place), batch)
    steps = of(placed(0, 1), placed(1, 1))
    device.finish_batch(steps, batch, [np.ones((3, 1))], 0.0)
    step = placed(0, 2)
    ((key, _),) = of(step).items()
    began = device.begin(key, step, program, 0.0, batch=batch.program)
    full: Any = Prepared(program.program, full=True)
    device.finish(key, step, full, began, [np.ones((1, 1))], 0.0)
    assert device.begin(key, placed(0, 3), program, 0.0)
    with pytest.raises(StateLost):
        device.begin(key, placed(0, 2), program, 0.0)


def revised(place: int, position: int, revision: int) -> SequenceStep:
    return replace(placed(place, position), revision=revision, since=position)


def test_rows_tell_the_revision_of_the_step_that_came_last() -> None:
    device, program = KeptSequences(), two_dimensional()
    batch = side_by_side(program)

    def told(place: int) -> tuple[int, int]:
        found = device.rows(placed(place).sequence)["m", E1]
        return found.revision, found.position

    for place in (0, 1):
        begin(device, program, revised(place, 0, 1), batch)
    assert told(0) == told(1) == (1, 1)
    steps = of(revised(0, 1, 1), revised(1, 0, 4))
    device.begin_batch(steps, batch, 1.0)
    assert told(1) == (4, 0)  # The rows of the revision before are given up when the step begins.
    device.finish_batch(steps, batch, (), 1.0)
    assert (told(0), told(1)) == ((1, 2), (4, 1))
    begin(device, program, revised(1, 1, 5), batch)
    assert told(1) == (5, 2)


def test_states_of_steps_without_a_revision_are_not_carried() -> None:
    device, program = KeptSequences(), two_dimensional()
    begin(device, program, placed(0), side_by_side(program))
    assert device.rows(placed(0).sequence) == {}
    assert list(device.grown(("m", E1), 1 << 20)) == []


def test_a_sequence_that_comes_from_elsewhere_lies_in_its_place_and_goes_on() -> None:
    device, program = KeptSequences(), two_dimensional()
    batch, key = side_by_side(program), ("m", E1, placed(2).sequence)
    begin(device, program, revised(0, 0, 1), batch)
    device.expect(key)
    arrays: Any = device.adopt(key, program, 1.0, batch=batch.program)
    assert device.rows(key[2]) == {}
    for array in arrays:
        array[:, :3] = 5
    device.adopted(key, 2, 3)
    steps = of(revised(2, 3, 2), revised(0, 1, 1))
    began: Any = device.begin_batch(steps, batch, 1.0)
    assert all((value[2, :3] == 5).all() and not value[0].any() for value in began)
    device.end(key[2])
    device.expect(key)
    with pytest.raises(StateLost):
        device.adopt(key, program, 2.0, batch=batch.program)


def test_what_comes_from_elsewhere_for_a_gateway_that_is_lost_is_not_kept() -> None:
    device, program = KeptSequences(), two_dimensional()
    gateway, key = placed(0).sequence.partition("/")[0], ("m", E1, placed(0).sequence)
    device.expect(key)
    device.lose("another")
    device.adopt(key, program, 1.0)
    device.expect(key)
    device.lose(gateway)
    with pytest.raises(StateLost):
        device.adopt(key, program, 1.0)
    assert not len(device)


@pytest.mark.parametrize("together", [False, True])
def test_what_comes_from_elsewhere_after_a_step_is_of_no_use(together: bool) -> None:
    device, program = KeptSequences(), two_dimensional()
    batch = side_by_side(program)
    begin(device, program, revised(0, 0, 1), batch)
    key = ("m", E1, placed(0).sequence)
    device.expect(key)
    if together:
        device.begin_batch(of(revised(0, 1, 1)), batch, 1.0)
    else:
        begin(device, program, revised(0, 1, 1), batch)
    with pytest.raises(StateLost):
        device.adopt(key, program, 2.0, batch=batch.program)


@pytest.mark.parametrize(
    ("revision", "since", "position", "kept"),
    [
        (1, 0, 5, True),
        (2, 3, 3, True),
        (2, 3, 2, True),
        (2, 3, 4, False),  # The steps from 3 on were given up, and one was missed since.
        (2, 9, 5, True),
        (3, 3, 3, False),  # A whole revision was missed.
        (3, 3, 0, True),
        (1, 0, 6, False),
    ],
)
def test_a_step_does_not_go_on_behind_the_place_where_another_revision_began(
    revision: int, since: int, position: int, kept: bool
) -> None:
    device, program = KeptSequences(), prepared(BUFFER)
    for number in range(5):
        step = replace(step_of("p", number), revision=1)
        device.finish(key_of("p"), step, program, (), device.begin(key_of("p"), step, program, 0.0), 0.0)
    step = replace(step_of("p", position), revision=revision, since=since)
    if kept:
        device.begin(key_of("p"), step, program, 0.0)
        return
    with pytest.raises(StateLost):
        device.begin(key_of("p"), step, program, 0.0)


def test_there_is_no_more_room_for_what_comes_from_elsewhere_than_for_others() -> None:
    device, program = KeptSequences(), prepared(BUFFER, sequences=1)
    device.expect(key_of("p"))
    device.adopt(key_of("p"), program, 0.0)
    device.expect(key_of("q"))
    with pytest.raises(Unavailable):
        device.adopt(key_of("q"), program, 0.0)
    device.expect(key_of("q"))
    device.adopt(key_of("q"), program, SPARED_S)
    assert device.evictions == 1


def test_a_row_is_freed_with_its_last_sequence() -> None:
    device, program = KeptSequences(), two_dimensional()
    batch = side_by_side(program)
    arrays = [weakref.ref(begin(device, program, placed(place), batch)[0].base) for place in (0, 1)]
    assert arrays[0]() is arrays[1]() is not None
    device.end(placed(0).sequence)
    assert arrays[0]() is not None
    device.end(placed(1).sequence)
    gc.collect()
    assert arrays[0]() is None and device.nbytes == 0


@pytest.mark.parametrize("name", ["row/1.3", "row/1.99999", "row/1.-1", "row/1.x", "row/1."])
def test_a_name_without_a_place_of_the_row_lies_by_itself(name: str) -> None:
    device, program = KeptSequences(), two_dimensional()
    batch = side_by_side(program)
    began = begin(device, program, step_of(name), batch)
    assert [value.shape for value in began] == [(1, ROWS)] * 2 and not any(value.any() for value in began)
    with pytest.raises(StateLost):
        device.begin_batch(of(step_of(name, 1)), batch, 1.0)


def test_what_comes_late_of_a_sequence_that_has_ended_does_not_take_its_place_again() -> None:
    device, program = KeptSequences(), two_dimensional()
    batch = side_by_side(program)
    device.end(placed(0).sequence)
    with pytest.raises(StateLost):
        begin(device, program, placed(0), batch)


def test_without_memory_for_a_row_sequences_lie_by_themselves() -> None:
    device, program = KeptSequences(), two_dimensional()
    batch = side_by_side(program)
    program.most_bytes = 8 * ROWS
    assert len(begin(device, program, placed(0), batch)) == 2
    with pytest.raises(StateLost):
        device.begin_batch(of(placed(0, 1)), batch, 1.0)
