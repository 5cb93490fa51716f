"""When a device is starved of the CPU, how long what it measures does not count, and what others hear: virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.measure.starvation import (
    Starvation,
    StarvationTiming,
    Wait,
    describe_starvation,
    wait_between,
)
from edgepart.agent.wire.control import Starved

TIMING = StarvationTiming()
LOOK_S = 2.0
CALM, BUSY = Wait(0.5, 0.05), Wait(0.25, 1.5)


def looks(*waits: Wait) -> list[tuple[bool, Starved]]:
    """What each look finds, two seconds apart."""
    starvation, found = Starvation(0.0), []
    for n, wait in enumerate(waits, 1):
        starvation.look(wait, n * LOOK_S)
        found.append((starvation.spoils, starvation.told))
    return found


def spoilt(*waits: Wait) -> list[bool]:
    return [spoils for spoils, _ in looks(*waits)]


def test_what_is_measured_while_others_have_the_cpu_does_not_count() -> None:
    assert spoilt(CALM, BUSY, BUSY, CALM) == [False, True, True, False]


@pytest.mark.parametrize(
    "wait",
    [
        Wait(0.02, 0.019),  # an idle agent whose every other millisecond is somebody else's
        Wait(1.8, 0.5),  # little beside what it computed
        Wait(0.0, 0.0),
    ],
)
def test_waiting_a_little_is_no_starvation(wait: Wait) -> None:
    assert looks(wait) == [(False, Starved())]


def test_an_idle_agent_on_a_busy_device_is_starved() -> None:
    assert spoilt(Wait(0.021, 0.12)) == [True]  # as measured beside eight endless loops on two cores


def test_a_load_that_lasts_is_how_the_device_is() -> None:
    count = round(TIMING.lasting_s / LOOK_S)
    found = looks(*[BUSY] * (count + 5))
    assert [spoils for spoils, _ in found] == [True] * (count - 1) + [False] * 6
    assert [told.lasting for _, told in found] == [False] * (count - 1) + [True] * 6
    assert all(told.share > 0.8 for _, told in found)


def test_pauses_make_no_new_load_of_one_that_lasts_and_a_long_one_does() -> None:
    count = round(TIMING.lasting_s / LOOK_S)
    short = [BUSY, BUSY, BUSY, CALM]
    assert looks(*short * count)[-2][1].lasting
    long = [*[BUSY] * 20, *[CALM] * 6]
    found = looks(*long * 20)
    assert not any(told.lasting for _, told in found)
    assert [spoils for spoils, _ in found] == ([True] * 20 + [False] * 6) * 20


def test_others_are_told_until_it_has_been_calm_for_a_while() -> None:
    told = [told.share > 0 for _, told in looks(CALM, BUSY, *[CALM] * 6)]
    assert told == [False, True, True, True, True, True, False, False]


def test_only_a_share_that_moves_is_news() -> None:
    wavering = [Wait(0.25, 1.5 + 0.05 * (n % 3)) for n in range(30)]
    assert len({told for _, told in looks(*wavering)}) == 1
    falling = [*[Wait(0.1, 1.9)] * 10, *[Wait(1.0, 1.0)] * 10]
    shares = [told.share for _, told in looks(*falling)]
    assert shares[9] == pytest.approx(0.95)
    assert shares[-1] == pytest.approx(0.5, abs=TIMING.news)


waits = st.builds(Wait, st.floats(0, 10), st.floats(0, 100))


@given(st.lists(waits, max_size=150), st.lists(st.floats(0.1, 10), min_size=150, max_size=150))
def test_what_counts_for_nothing_is_short_and_what_is_told_is_a_share(
    waits: Sequence[Wait], steps: Sequence[float]
) -> None:
    starvation, since = Starvation(0.0), 0.0
    for wait, now in zip(waits, accumulate(steps), strict=False):
        starvation.look(wait, now)
        if not starvation.spoils:
            since = now
        assert now - since < TIMING.lasting_s + max(steps)
        assert 0.0 <= starvation.told.share <= 1.0
        assert starvation.told.share or not starvation.told.lasting


def test_threads_that_come_and_go() -> None:
    before = {1: (10**9, 10**9), 2: (5 * 10**9, 0)}
    assert wait_between(before, {1: (2 * 10**9, 10**9), 3: (10**9, 2 * 10**9)}) == Wait(2.0, 2.0)
    assert wait_between(before, {}) == Wait(0.0, 0.0)
    assert wait_between({1: (9, 9)}, {1: (1, 1)}) == Wait(0.0, 0.0)  # another thread of the same number


@pytest.mark.parametrize(
    ("starved", "text"),
    [
        (Starved(), ""),
        (Starved(0.618), "busy: its threads waited 62 % of the time for a CPU"),
        (Starved(0.618, True), "busy: its threads waited 62 % of the time for a CPU, for minutes now"),
    ],
)
def test_what_people_are_told(starved: Starved, text: str) -> None:
    assert describe_starvation(starved) == text


@pytest.mark.parametrize(
    "timing", [lambda: StarvationTiming(share=1.0), lambda: StarvationTiming(lasting_s=5.0)]
)
def test_times_that_contradict_each_other_are_refused(timing: Callable[[], StarvationTiming]) -> None:
    with pytest.raises(ValueError, match="must hold"):
        timing()
