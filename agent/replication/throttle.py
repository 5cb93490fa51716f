"""Throttle: limits the rate at which models and weights travel. Rules, without I/O; the clock is an argument.

While no requests are served, they travel as fast as possible. While requests are served, they travel in parts that occupy a
link for a few milliseconds, and take only a share of its time: a request then waits for one such part at most.
"""

from __future__ import annotations

SHARE = 0.2
"""The share of a link's rate that copying takes while requests are served. With a larger one, models arrive sooner; with a
smaller one, requests are slowed down less."""
HOLD_S = 0.004
"""The seconds for which a part may occupy a link while requests are served. A shorter time disturbs less, and takes more
messages."""
LEAST_BYTES, MOST_BYTES = 16 << 10, 1 << 20
"""The smallest and largest part while requests are served: smaller ones are mostly overhead, and larger ones are never
asked for."""
UNKNOWN_BYTES_S = 5e6
"""The assumed rate, in bytes a second, of a link that was not measured yet."""
BUSY_S = 2.0
"""Seconds after a request in which more requests are expected."""


class ServingWatch:
    """Decides whether this device is serving requests."""

    def __init__(self) -> None:
        self._done, self._until = 0, float("-inf")

    def look(self, done: int, waiting: int, now: float) -> bool:
        """Whether requests are being served. `done` counts the requests of which this device has done its part so far,
        `waiting` those of which it still has to do it.

        >>> watch = ServingWatch()
        >>> watch.look(0, 0, 5.0), watch.look(1, 0, 6.0), watch.look(1, 0, 7.9), watch.look(1, 0, 8.1)
        (False, True, True, False)
        """
        if done != self._done or waiting:
            self._done, self._until = done, now + BUSY_S
        return now < self._until


def part_bytes(wanted: int, bytes_s: float, busy: bool) -> int:
    """Return how many of the `wanted` bytes to send in one part over a link of that rate.

    >>> part_bytes(1 << 20, 12.5e6, busy=True), part_bytes(1 << 20, 12.5e6, busy=False)
    (50000, 1048576)
    """
    if not busy:
        return wanted
    return min(wanted, max(LEAST_BYTES, min(MOST_BYTES, int(bytes_s * HOLD_S))))


class Throttle:
    """Delays one end's parts so that they take only a share of its links."""

    def __init__(self) -> None:
        self._free_at = float("-inf")

    def wait_s(self, nbytes: int, bytes_s: float, now: float, *, busy: bool) -> float:
        """Return the seconds to wait before sending so many bytes over a link of that rate. They are assumed to be sent
        then."""
        if not busy:
            self._free_at = now
            return 0.0
        begins_at = max(now, self._free_at)
        self._free_at = begins_at + nbytes / (SHARE * bytes_s)
        return begins_at - now
