"""Pace: how fast models and weights travel. Rules, without I/O; the clock is an argument.

While nothing is served, as fast as they can. While requests are, in parts that hold up a link for a few milliseconds, and
of its time only a share: a request that comes meanwhile waits for one such part at most.
"""

from __future__ import annotations

SHARE = 0.2
"""The part of a link's rate that copying takes while requests are served. With more, models arrive sooner; with less,
requests are slowed down less."""
HOLD_S = 0.004
"""How long a part may hold up a link while requests are served. Shorter disturbs less, and takes more messages."""
LEAST_BYTES, MOST_BYTES = 16 << 10, 1 << 20
"""The smallest and largest part that is asked for while requests are served: smaller ones are mostly overhead, and
larger ones are not asked for anyway."""
UNKNOWN_BYTES_S = 5e6
"""The rate that is assumed of a link that was not measured yet."""
BUSY_S = 2.0
"""The time after a request in which more of them are expected."""


class Business:
    """Whether requests are served here."""

    def __init__(self) -> None:
        self._done, self._until = 0, float("-inf")

    def look(self, done: int, waiting: int, now: float) -> bool:
        """`done`: requests that this device has done its part of so far; `waiting`: that it has to do.

        >>> business = Business()
        >>> business.look(0, 0, 5.0), business.look(1, 0, 6.0), business.look(1, 0, 7.9), business.look(1, 0, 8.1)
        (False, True, True, False)
        """
        if done != self._done or waiting:
            self._done, self._until = done, now + BUSY_S
        return now < self._until


def part_bytes(wanted: int, bytes_s: float, busy: bool) -> int:
    """How much of what is wanted goes at once over a link of that speed.

    >>> part_bytes(1 << 20, 12.5e6, busy=True), part_bytes(1 << 20, 12.5e6, busy=False)
    (50000, 1048576)
    """
    if not busy:
        return wanted
    return min(wanted, max(LEAST_BYTES, min(MOST_BYTES, int(bytes_s * HOLD_S))))


class Pace:
    """One end's share of its links."""

    def __init__(self) -> None:
        self._free_at = float("-inf")

    def wait_s(self, nbytes: int, bytes_s: float, now: float, *, busy: bool) -> float:
        """How long to wait before so many bytes go over a link of that speed; they are taken to go then."""
        if not busy:
            self._free_at = now
            return 0.0
        begins_at = max(now, self._free_at)
        self._free_at = begins_at + nbytes / (SHARE * bytes_s)
        return begins_at - now
