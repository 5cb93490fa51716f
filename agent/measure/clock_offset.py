"""Clock offset: computes how far another agent's clock is from ours, from questions and answers. Rules: no clock.

This is Cristian's method ("Probabilistic clock synchronization", 1989): the answer was given between question and return,
so half the round trip bounds the error, whatever each direction took. The shortest of several exchanges bounds it best. As
the clocks of two devices drift apart by some millionths, a straight line between two estimates gives the offset, which is
our addition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgepart.planner.errors import InternalError


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question for the time, and its answer."""

    sent_s: float
    """The time by our clock when the question was sent."""
    there_s: float
    """The time in the answer, by their clock."""
    back_s: float
    """The time by our clock when the answer was back; not before `sent_s`."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The offset of another agent's clock from ours."""

    at_s: float
    """The time by our clock when the offset was measured."""
    ahead_s: float
    """Their clock minus ours, in seconds."""
    error_s: float
    """The largest possible error of `ahead_s`, in seconds."""


OWN_OFFSET = Offset(0.0, 0.0, 0.0)
"""The offset of our own clock."""


def estimate_offset(exchanges: Iterable[Exchange]) -> Offset:
    """The offset by the exchange with the shortest round trip. Raises InternalError if there is no exchange."""
    best = min(exchanges, key=lambda one: one.back_s - one.sent_s, default=None)
    if best is None:
        raise InternalError("no exchange tells the time")
    middle_s = (best.sent_s + best.back_s) / 2
    return Offset(middle_s, best.there_s - middle_s, (best.back_s - best.sent_s) / 2)


@dataclass(frozen=True, slots=True)
class ClockMap:
    """Translates times of another agent's clock to ours, from an early and a late offset."""

    first: Offset
    last: Offset

    @property
    def error_s(self) -> float:
        """The largest possible error between the two offsets, in seconds."""
        return max(self.first.error_s, self.last.error_s)

    def ours(self, theirs_s: float) -> float:
        """The time by our clock when theirs shows `theirs_s`."""
        first, last = self.first, self.last
        start_s, stop_s = first.at_s + first.ahead_s, last.at_s + last.ahead_s
        if stop_s <= start_s or last.at_s <= first.at_s:
            return theirs_s - first.ahead_s
        part = min(1.0, max(0.0, (theirs_s - start_s) / (stop_s - start_s)))
        return theirs_s - first.ahead_s - part * (last.ahead_s - first.ahead_s)
