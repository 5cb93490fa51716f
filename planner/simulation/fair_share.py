"""Fair sharing: the rate that a shared resource (one direction of a network card, or a medium) offers each of
the link directions through it. A link direction is called a **way** here. Pure rules;
planner/simulation/network.py moves bytes by these rules.

While few ways carry a message, each has an account of its own. In a **crowd**, all ways that a resource
limits have the same rate, so one account is enough: the bytes that each of them was **served** so far. A way
is done when this account has grown by the way's bytes since the way joined, whatever the rate was in the
meantime. So the ways in line stay in order, and only the first needs an event. (This is virtual time, as in
fair queueing.)

A change of the offered rate matters to a way only if the resource begins or ceases to limit it. The ways that
the resource limits are not affected while the offer rises no higher than `reach`; the others are not affected
while it falls no lower than `most`. Within these bounds no way has to be updated."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

NEVER = float("inf")


def even_rate(bytes_per_s: float, demands: Iterable[tuple[float, int]], crossings: int) -> float:
    """The rate that a resource offers each way. `demands` are the ways' own bytes/s and crossings, slowest first;
    `crossings` is their sum. Infinite if every way gets its own rate.

    >>> even_rate(10.0, [(1.0, 1), (9.0, 1), (9.0, 1)], 3)
    4.5
    """
    left = bytes_per_s
    for rate, count in demands:
        if rate * crossings >= left:
            return left / crossings
        left -= rate * count
        crossings -= count
    return NEVER


class SharedResource:
    """A shared resource: one direction of a network card, or a medium."""

    __slots__ = ("bytes_per_s", "carrying", "crossings", "first", "kind", "line", "most", "name", "offered",
                 "reach", "served", "since", "slowest", "wants")  # fmt: skip

    def __init__(self, kind: str, name: str, bytes_per_s: float) -> None:
        self.kind, self.name, self.bytes_per_s = kind, name, bytes_per_s
        self.slowest = NEVER
        """The lowest rate, in bytes/s, that any way through the resource has alone."""
        self.carrying: dict[LinkDirection, int] = {}
        """The ways that carry a message now, and the number of times that each crosses the resource."""
        self.offered = NEVER
        """The rate offered to each way, in bytes/s."""
        self.reach, self.most = 0.0, NEVER
        """The offer may rise to `reach` and fall to `most` before it affects a way; kept only while there is
        any crowd."""
        self.line: list[tuple[float, int]] | None = None
        """In a crowd, a heap of (served bytes at which a way is done, code of the way), which may still contain ways
        that left. None without a crowd."""
        self.wants: list[tuple[float, int]] = []
        """The ways that carry a message in a crowd, as (bytes/s alone, crossings), slowest first."""
        self.crossings = 0
        """The sum of the crossings in `wants`, in a crowd."""
        self.served = self.since = 0.0
        """The bytes that each way in line was served up to the time `since`."""
        self.first: LinkDirection | None = None
        """The way in line that has an event."""

    def offer(self) -> float:
        """Returns the rate to offer each way."""
        if len(self.carrying) < 2:
            return (
                NEVER  # A single way is never limited: its own rate is no higher than that of its resources.
            )
        crossings = sum(self.carrying.values()) if self.line is None else self.crossings
        even = self.bytes_per_s / crossings
        if self.slowest >= even:
            return even
        if self.line is not None:
            return even_rate(self.bytes_per_s, self.wants, crossings) if self.wants[0][0] < even else even
        for way in self.carrying:
            if way.alone < even:
                wants = sorted([(other.alone, count) for other, count in self.carrying.items()])
                return even_rate(self.bytes_per_s, wants, crossings)
        return even

    def served_at(self, now: float) -> float:
        """The bytes that each way in line was served up to `now`."""
        return self.served if now == self.since else self.served + (now - self.since) * self.offered


class LinkDirection:
    """A way: one direction between two devices, and the message on it."""

    __slots__ = ("after_s", "alone", "announced", "code", "event", "finish", "fixed", "key", "left", "line", "queue",
                 "rate", "shared", "since", "source", "target", "until")  # fmt: skip

    def __init__(
        self,
        source: str,
        target: str,
        code: int,
        alone: float,
        shared: tuple[tuple[SharedResource, int], ...],
    ) -> None:
        self.source, self.target, self.code = source, target, code
        self.alone = alone
        """The way's rate in bytes/s when nothing else is sent."""
        self.shared = shared
        """The resources that the way goes through, and the number of times that it crosses each."""
        self.fixed = 0.0
        """The fixed cost of a message, as bytes that could be sent in that time."""
        self.after_s = 0.0
        """Seconds from sending the last byte until the target has the whole message."""
        self.announced = 0.0
        """Bytes of all the schedule's messages on the way, fixed costs included."""
        self.queue: deque[tuple[int, float]] | None = None
        """Messages that wait, and their bytes; None until the first message has to wait."""
        self.key = -1
        """The message that is being sent; -1 if there is none."""
        self.left = self.rate = self.since = 0.0
        """The bytes not yet sent at the time `since`, and their rate. The rate is 0 if it is not known yet,
        or if the way is in line."""
        self.finish = self.event = NEVER
        """The time at which the last byte is sent if nothing changes, and the time of the next event, which
        is not later."""
        self.line: SharedResource | None = None
        """The crowd in whose line the way is; None if it is in no line."""
        self.until = 0.0
        """The served bytes at which the last byte of a way in line is sent."""
