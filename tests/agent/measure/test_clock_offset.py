"""How far another clock is, is wrong by half a round trip at most, whatever the ways took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.measure.clock_offset import OWN_OFFSET, ClockMap, Exchange, Offset, estimate_offset
from edgepart.planner.errors import InternalError

SECONDS = st.floats(0, 1e4)
WAYS = st.lists(st.tuples(SECONDS, st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=12)
"""When it is asked, and how long question and answer take."""
EXACT = 1e-9


@given(st.floats(-1e5, 1e5), WAYS)
def test_the_error_is_half_the_least_round_trip_at_most(
    ahead_s: float, ways: list[tuple[float, ...]]
) -> None:
    exchanges = [Exchange(sent, sent + there + ahead_s, sent + there + back) for sent, there, back in ways]
    found = estimate_offset(exchanges)
    assert abs(found.ahead_s - ahead_s) <= found.error_s + EXACT
    assert found.error_s == pytest.approx(min(there + back for _, there, back in ways) / 2, abs=EXACT)


@given(st.floats(-1e5, 1e5), st.floats(-1e-4, 1e-4), SECONDS, st.floats(1, 600), WAYS, WAYS, st.floats(0, 1))
def test_between_two_estimates_a_clock_that_goes_faster_is_met(
    ahead_s: float, faster: float, start_s: float, length_s: float, before: object, after: object, part: float
) -> None:
    def theirs(ours_s: float) -> float:
        return ours_s + ahead_s + faster * (ours_s - start_s)

    def asked(at_s: float, ways: object) -> Offset:
        found = []
        for _, there, back in ways:  # type: ignore[attr-defined]
            there, back = there / 100, back / 100
            found.append(Exchange(at_s, theirs(at_s + there), at_s + there + back))
        return estimate_offset(found)

    clock = ClockMap(asked(start_s, before), asked(start_s + length_s, after))
    at_s = start_s + part * length_s
    # What the clock gains within one exchange comes on top of its bound; and an estimate is of its exchange's middle.
    slack_s = 2 * abs(faster) * 0.2 + EXACT
    assert abs(clock.ours(theirs(at_s)) - at_s) <= clock.error_s + slack_s


def test_one_estimate_is_taken_for_both() -> None:
    one = Offset(10.0, 5.0, 0.1)
    assert ClockMap(one, one).ours(20.0) == 15.0
    assert ClockMap(OWN_OFFSET, OWN_OFFSET).ours(3.0) == 3.0


def test_nobody_was_asked() -> None:
    with pytest.raises(InternalError):
        estimate_offset([])
