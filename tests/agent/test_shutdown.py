"""When an agent that was told to stop may go."""

from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import booleans, floats, lists, tuples

from edgepart.agent.shutdown import MOST_S, QUIET_S, Withdrawal

LOOKS = lists(tuples(floats(0.0, 1.0), booleans(), booleans()), min_size=1, max_size=40)
"""Seconds since the look before, whether it is needed, whether it computes."""


def may_go(looks: list[tuple[float, bool, bool]]) -> bool:
    """The plain twin: of the whole story at once."""
    now, story = 0.0, []
    for seconds, needed, busy in looks:
        now += seconds
        story.append((now, needed or busy))
    asked = [at for at, of_use in story if of_use]
    return not asked or now >= asked[-1] + QUIET_S or now >= MOST_S


@given(LOOKS)
def test_it_goes_after_a_quiet_time_or_in_vain(looks: list[tuple[float, bool, bool]]) -> None:
    withdrawal, now, found = Withdrawal(0.0), 0.0, False
    for seconds, needed, busy in looks:
        now += seconds
        found = withdrawal.may_go(now, needed=needed, busy=busy)
    assert found == may_go(looks)


def test_it_is_in_vain_after_a_while() -> None:
    withdrawal = Withdrawal(10.0)
    assert not withdrawal.may_go(10.0 + MOST_S / 2, needed=True, busy=True)
    assert withdrawal.may_go(10.0 + MOST_S, needed=True, busy=True)
