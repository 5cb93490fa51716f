"""Schedule and Progress: any way of cutting gives the same piece, any order of arrival the same answer."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.execution.copies import plan_copy
from edgepart.agent.execution.schedule import Progress, make_schedule
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.errors import FrameError, InternalError
from edgepart.planner.plans.plan import GATEWAY, Piece, Program, Receive, Run, Send, Transfer
from edgepart.planner.region import Array, Region, span
from tests.agent import handmade

WHOLE = np.arange(6 * 7).reshape(6, 7)


@st.composite
def regions(draw: st.DrawFn) -> Region:
    """Regions of WHOLE, some with several intervals on an axis; never empty."""
    spans = []
    for extent in WHOLE.shape:
        chosen = draw(st.sets(st.integers(0, extent - 1), min_size=1))
        spans.append(span(*((i, i + 1) for i in chosen)))
    return Region(tuple(spans))


def mask(region: Region) -> Array:
    """Which elements of WHOLE are in it: the plain twin of region arithmetic."""
    found = np.zeros(WHOLE.shape, bool)
    for box in region.boxes():
        found[box.slices()] = True
    return found


@settings(max_examples=150)
@given(regions(), st.lists(regions(), max_size=5))
def test_a_recipe_gives_the_piece_exactly_when_it_is_all_there(want: Region, have: list[Region]) -> None:
    slots = {n: Piece("t", region) for n, region in enumerate(have)} | {99: Piece("other", want)}
    held: dict[int, Value] = {n: region.crop(WHOLE).copy() for n, region in enumerate(have)}
    found = plan_copy(Piece("t", want), slots)
    covered = np.logical_or.reduce([mask(region) for region in have] or [np.zeros(WHOLE.shape, bool)])
    assert (found is not None) == bool(covered[mask(want)].all())
    if found is not None:
        made = found.make(held)
        np.testing.assert_array_equal(made, want.crop(WHOLE))
        assert made.flags.c_contiguous


def test_a_piece_that_is_held_is_not_copied_and_the_smallest_around_it_is_cropped() -> None:
    slots = {0: Piece("t", Region.full((6, 7))), 1: Piece("t", Region.box((0, 3), (0, 7)))}
    held = {0: WHOLE, 1: WHOLE[:3]}
    exact = plan_copy(Piece("t", Region.box((0, 3), (0, 7))), slots)
    assert exact is not None and exact.make(held) is held[1]
    inside = plan_copy(Piece("t", Region.box((1, 3), (0, 7))), slots)
    assert inside is not None and inside.slots == (1,)
    assert np.shares_memory(inside.make(held), WHOLE)  # whole rows are contiguous already


def test_what_has_no_shape_goes_whole() -> None:
    whole = Piece("t", Region(()))
    found = plan_copy(whole, {0: whole})
    assert found is not None
    for value in (np.float32(3.0), "text", [np.zeros(2)], {1: 0.5}, None):
        assert found.make({0: value}) is value
    assert plan_copy(whole, {0: Piece("t", Region.box((0, 1)))}) is None


def run_numpy(step: Run, program: Program, values: list[Value]) -> list[Array]:
    """Stands in for sessions: gives for each output port numbers that depend on all inputs."""
    total = sum(float(np.sum(v)) for v in values)
    ports = program.segments[step.segment].outputs
    return [np.full(port.piece.region.shape, total, np.float32) for port in ports]


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.sampled_from("abc"))
def test_any_order_of_arrival_gives_the_same_sends_and_holds_nothing_at_the_end(
    rng: random.Random, device: str
) -> None:
    plan = handmade.split_plan()
    schedule = make_schedule(plan.programs[device], plan.transfers)
    orders = [sorted(schedule.incoming), rng.sample(sorted(schedule.incoming), len(schedule.incoming))]
    outcomes = []
    for order in orders:
        progress, sent = Progress(schedule), []
        for number in [*order, *order]:  # everything twice
            values = [np.full(p.region.shape, number, np.float32) for p in schedule.incoming[number].pieces]
            progress.keep_pieces(number, values)
            while (work := progress.next_work()) is not None:
                assert progress.next_work() is None  # one step at a time
                made = work.values()
                if isinstance(work.step, Run):
                    progress.done(run_numpy(work.step, schedule.program, made))
                else:
                    sent.append((work.step.transfer, [v.tolist() for v in made]))
                    progress.done()
        assert progress.finished
        assert progress.held_bytes == 0
        outcomes.append(sent)
    assert outcomes[0] == outcomes[1]
    assert [n for n, _ in outcomes[0]] == [s.transfer for s in schedule.program.steps if isinstance(s, Send)]


def test_pieces_are_let_go_after_their_last_use() -> None:
    plan = handmade.split_plan()
    schedule = make_schedule(plan.programs["a"], plan.transfers)
    progress = Progress(schedule)
    x = handmade.request_input(0)[:, :, :5]
    assert progress.keep_pieces(0, [x])
    assert not progress.keep_pieces(0, [x])
    assert progress.held_bytes == x.nbytes
    work = progress.next_work()
    assert work is not None and work.step == Run(0)
    c1 = x[:, :, :4]
    progress.done([c1])
    assert progress.held_bytes == c1.nbytes  # x is gone
    work = progress.next_work()
    assert work is not None and work.step == Send(2)
    progress.done()
    assert progress.next_work() is None  # b's row is awaited
    assert not progress.finished


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((Receive(0), Run(7)), "runs segment 7 of 2"),
        ((Receive(1),), "names transfer 1, which is none of that device's"),
        ((Run(0),), r"step 0 of a's program needs x\[0:1x0:2x0:5x0:6\]"),
        ((Receive(0), Run(0), Run(1)), "needs c1"),
        ((Receive(0), Run(0), Send(2)), r"never does transfers \[3, 4, 6\]"),
    ],
)
def test_a_program_that_cannot_be_followed_is_refused(
    steps: tuple[Run | Send | Receive, ...], why: str
) -> None:
    plan = handmade.split_plan()
    with pytest.raises(InternalError, match=why):
        make_schedule(replace(plan.programs["a"], steps=steps), plan.transfers)


def test_arrivals_are_checked() -> None:
    plan = handmade.split_plan()
    progress = Progress(make_schedule(plan.programs["a"], plan.transfers, {"x": np.dtype("float32")}))
    good = handmade.request_input(0)[:, :, :5]
    wrong: list[tuple[int, list[Value]]] = [
        (1, [good]),
        (0, []),
        (0, [good, good]),
        (0, [good[:, :, :4]]),
        (0, [good.astype(np.float64)]),
        (0, ["text"]),
        (0, [None]),
    ]
    for number, values in wrong:
        with pytest.raises(FrameError):
            progress.keep_pieces(number, values)
    assert progress.held_bytes == 0
    assert progress.keep_pieces(0, [good])


def test_a_run_that_gives_another_shape_is_our_own_fault() -> None:
    plan = handmade.split_plan()
    progress = Progress(make_schedule(plan.programs["a"], plan.transfers))
    progress.keep_pieces(0, [handmade.request_input(0)[:, :, :5]])
    assert progress.next_work() is not None
    with pytest.raises(InternalError, match=r"segment 0 of a gave c1.* in shape \(3,\)"):
        progress.done([np.zeros(3, np.float32)])


def test_what_is_received_and_never_read_is_not_kept() -> None:
    transfers = [Transfer(0, GATEWAY, "a", (Piece("x", Region.box((0, 4))),), 16)]
    progress = Progress(make_schedule(Program("a", (Receive(0),), (), 0, 0), transfers))
    progress.keep_pieces(0, [np.zeros(4, np.float32)])
    assert progress.next_work() is None
    assert progress.finished and progress.held_bytes == 0


def test_only_arrays_of_numbers_count_as_bytes() -> None:
    assert value_bytes(np.zeros(3, np.float32)) == 12
    assert value_bytes(np.array(["a"], object)) == value_bytes([1]) == value_bytes(None) == 0
