"""How fast bulk goes while requests are served: against a plain account of what went when."""

from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import booleans, floats, integers, lists, tuples

from edgepart.agent.replication.throttle import HOLD_S, LEAST_BYTES, SHARE, ServingWatch, Throttle, part_bytes

BYTES_S = 1e6
WANTS = lists(tuples(floats(0.0, 2.0), integers(1, 1 << 20), booleans()), max_size=30)
"""Seconds since the one before, bytes, whether requests are served then."""


@given(WANTS)
def test_while_requests_are_served_only_a_share_goes(wants: list[tuple[float, int, bool]]) -> None:
    pace, now = Throttle(), 0.0
    went: list[tuple[float, int]] = []
    """When which bytes went, since requests were served without a pause."""
    for seconds, nbytes, busy in wants:
        now += seconds
        wait_s = pace.wait_s(nbytes, BYTES_S, now, busy=busy)
        assert wait_s >= 0.0
        assert busy or wait_s == 0.0
        now += wait_s
        went = [*went, (now, nbytes)] if busy else []
        for n, (began, _) in enumerate(went):
            before_last = sum(size for _, size in went[n:-1])
            assert before_last <= SHARE * BYTES_S * (now - began) * (1 + 1e-9) + 1e-6


@given(integers(1, 4 << 20), floats(1e3, 1e10))
def test_a_part_holds_up_a_link_for_a_moment_only(wanted: int, bytes_s: float) -> None:
    assert part_bytes(wanted, bytes_s, busy=False) == wanted
    part = part_bytes(wanted, bytes_s, busy=True)
    assert 0 < part <= wanted
    assert part <= max(LEAST_BYTES, HOLD_S * bytes_s)


@given(lists(tuples(floats(0.0, 3.0), integers(0, 2), integers(0, 1)), max_size=30))
def test_requests_are_served_for_a_while_after_the_last_one(looks: list[tuple[float, int, int]]) -> None:
    serving_watch, now, done, last = ServingWatch(), 0.0, 0, float("-inf")
    for seconds, more, waiting in looks:
        now, done = now + seconds, done + more
        last = now if more or waiting else last
        assert serving_watch.look(done, waiting, now) == (now < last + 2.0)
