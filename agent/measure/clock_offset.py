"""Clock offset: how far another agent's clock is from ours, from questions and answers. Rules: no clock.

Cristian's way ("Probabilistic clock synchronization", 1989): the answer was given between question and return, so half the
round trip bounds the error whatever the two ways took; of several exchanges the shortest bounds it best. That two machines'
clocks run apart by some millionths is met by two estimates with a straight line between them, which is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgepart.planner.errors import InternalError


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question for the time."""

    sent_s: float
    """By our clock."""
    there_s: float
    """The answer."""
    back_s: float
    """By our clock; not before `sent_s`."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Of another agent's clock."""

    at_s: float
    """By our clock, when it was found."""
    ahead_s: float
    """Their clock less ours."""
    error_s: float
    """No more than this is it wrong."""


SAME = Offset(0.0, 0.0, 0.0)
"""Of our own clock."""


def estimate(exchanges: Iterable[Exchange]) -> Offset:
    """By the exchange with the least round trip. InternalError where there is none."""
    best = min(exchanges, key=lambda one: one.back_s - one.sent_s, default=None)
    if best is None:
        raise InternalError("no exchange tells the time")
    middle_s = (best.sent_s + best.back_s) / 2
    return Offset(middle_s, best.there_s - middle_s, (best.back_s - best.sent_s) / 2)


@dataclass(frozen=True, slots=True)
class ClockMap:
    """From another agent's clock to ours."""

    first: Offset
    last: Offset

    @property
    def error_s(self) -> float:
        """At most, between the two."""
        return max(self.first.error_s, self.last.error_s)

    def ours(self, theirs_s: float) -> float:
        """Our time when their clock shows that."""
        first, last = self.first, self.last
        start_s, stop_s = first.at_s + first.ahead_s, last.at_s + last.ahead_s
        if stop_s <= start_s or last.at_s <= first.at_s:
            return theirs_s - first.ahead_s
        part = min(1.0, max(0.0, (theirs_s - start_s) / (stop_s - start_s)))
        return theirs_s - first.ahead_s - part * (last.ahead_s - first.ahead_s)
