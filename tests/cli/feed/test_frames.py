"""The line of frames: a table, and laws over any stream of frames, answers and waits."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.cli.feed.frames import TOLD_EVERY_S, FeedCounts, FeedFrame, FrameLine, LineLimits, LossTeller
from edgepart.planner.errors import UsageError


def frame(number: int, came_s: float = 0.0) -> FeedFrame:
    return FeedFrame(number, "here", b"", came_s)


def test_the_newest_frames_wait_and_older_ones_are_dropped() -> None:
    line = FrameLine(LineLimits(at_once=1, waiting=2))
    for number in range(1, 6):
        line.arrive(frame(number))
    assert (line.waiting, line.counts.dropped) == (2, 3)
    first = line.next(0.0)
    assert first is not None and first.number == 4
    assert line.next(0.0) is None  # One is under way.
    line.end(4, answered=True)
    second = line.next(0.0)
    assert second is not None and second.number == 5
    line.end(5, answered=False)
    assert line.is_idle
    assert line.counts == FeedCounts(came=5, answered=1, failed=1, dropped=3)


@pytest.mark.parametrize(("waited_s", "sent"), [(0.0, True), (2.0, True), (2.001, False)])
def test_a_frame_that_is_too_old_is_dropped(waited_s: float, sent: bool) -> None:
    line = FrameLine(LineLimits(max_age_s=2.0))
    line.arrive(frame(1, came_s=10.0))
    assert (line.next(10.0 + waited_s) is not None) is sent
    assert line.counts.dropped == (not sent)


@pytest.mark.parametrize(
    "wrong", [{"at_once": 0}, {"waiting": 0}, {"max_age_s": 0.0}, {"max_age_s": float("nan")}]
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--at-once"):
        LineLimits(**wrong)  # type: ignore[arg-type]


STEPS = st.lists(st.sampled_from(["arrive", "next", "answer", "fail", "wait"]), max_size=60)
LIMITS = st.builds(
    LineLimits, st.integers(1, 3), st.none() | st.integers(1, 3), st.sampled_from([0.5, 3.0, inf])
)


@given(LIMITS, STEPS)
def test_each_frame_has_one_fate_and_frames_are_sent_in_order(limits: LineLimits, steps: list[str]) -> None:
    line, now, sent = FrameLine(limits), 0.0, []
    for step in steps:
        if step == "arrive":
            line.arrive(frame(line.counts.came + 1, now))
        elif step == "wait":
            now += 1.0
        elif step == "next":
            if (found := line.next(now)) is not None:
                assert now - found.came_s <= limits.max_age_s
                sent.append(found.number)
        elif line.under_way:
            line.end(min(line.under_way), answered=step == "answer")
        counts = line.counts
        ended = counts.answered + counts.failed + counts.dropped
        assert counts.came == ended + line.waiting + len(line.under_way)
        assert len(line.under_way) <= limits.at_once
        assert limits.waiting is None or line.waiting <= limits.waiting
    assert sent == sorted(set(sent))
    if limits.waiting is None and limits.max_age_s == inf:
        assert line.counts.dropped == 0
    line.drop_waiting()
    assert line.waiting == 0


def test_losses_are_told_now_and_then() -> None:
    teller, counts = LossTeller(), FeedCounts(came=10)
    assert teller.due(counts, 0.0) is None
    counts.dropped = 4
    assert teller.due(counts, 1.0) == (
        "of the last 10 frames, 4 dropped, 0 failed: the cluster is slower than the source"
    )
    counts.came, counts.dropped, counts.failed = 20, 5, 2
    assert teller.due(counts, 1.0 + TOLD_EVERY_S / 2) is None
    text = teller.due(counts, 1.0 + TOLD_EVERY_S)
    assert text is not None and text.startswith("of the last 10 frames, 1 dropped, 2 failed")
    assert teller.due(counts, 99.0) is None
