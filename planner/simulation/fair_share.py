"""Sharing: what several ways have in common, a direction of a network card or a medium, and what it offers each.
Rules only; planner/simulation/network.py moves bytes by them.

Where few ways carry something, every one of them keeps its own books. Where there is a **crowd**, all that are held
up there get the same rate, so one book is enough: how many bytes each of them was **served** so far. A way is done
when that reaches what it had when the way joined plus its bytes, whatever the rate did meanwhile, so those in line
stay in order and only the first has an event. (Virtual time, as in fair queueing.)

A change of what is offered matters to a way only where it becomes what holds it up, or no longer is. For each that is
held up here there is a rate, `reach` or more, that what is offered may rise to; for the others one, `most` or less,
that it may fall to. Within them nobody has to be asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

NEVER = float("inf")


def even_rate(bytes_per_s: float, demands: Iterable[tuple[float, int]], crossings: int) -> float:
    """What is offered to each, where all want (their own bytes_per_s, at so many crossings), slowest first; inf where
    everybody has what they want.

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


class Shared:
    """One direction of a network card, or a medium."""

    __slots__ = ("bytes_per_s", "carrying", "crossings", "first", "kind", "line", "most", "name", "offered",
                 "reach", "served", "since", "slowest", "wants")  # fmt: skip

    def __init__(self, kind: str, name: str, bytes_per_s: float) -> None:
        self.kind, self.name, self.bytes_per_s = kind, name, bytes_per_s
        self.slowest = NEVER
        """The least that any way that goes through it has alone."""
        self.carrying: dict[LinkDirection, int] = {}
        """Those that carry something now, and how often each crosses it."""
        self.offered = NEVER
        self.reach, self.most = 0.0, NEVER
        """What is offered may rise and fall so far before a way feels it; known only while there is a crowd anywhere."""
        self.line: list[tuple[float, int]] | None = None
        """Of a crowd, a heap of what is to be served when a way of that code is done; those that left may still be
        in it. None where there is no crowd."""
        self.wants: list[tuple[float, int]] = []
        """Of a crowd, (bytes a second alone, crossings) of all that carry something, slowest first."""
        self.crossings = 0
        """Of a crowd, the sum of these."""
        self.served = self.since = 0.0
        """Bytes of each way in line, until then."""
        self.first: LinkDirection | None = None
        """The one in line that has an event."""

    def offer(self) -> float:
        """What is to be offered to each way, worked out anew."""
        if len(self.carrying) < 2:
            return NEVER  # No way is faster than what it goes through.
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
        """Bytes of each way in line until now."""
        return self.served if now == self.since else self.served + (now - self.since) * self.offered


class LinkDirection:
    """One direction between two devices, and the message on it."""

    __slots__ = ("after_s", "alone", "announced", "code", "event", "finish", "fixed", "key", "left", "line", "queue",
                 "rate", "shared", "since", "source", "target", "until")  # fmt: skip

    def __init__(
        self, source: str, target: str, code: int, alone: float, shared: tuple[tuple[Shared, int], ...]
    ) -> None:
        self.source, self.target, self.code = source, target, code
        self.alone = alone
        """Bytes a second when nothing else goes on."""
        self.shared = shared
        """What it goes through, and how often it crosses that."""
        self.fixed = 0.0
        """Bytes that could go in the time of a message's fixed cost."""
        self.after_s = 0.0
        """From the last byte sent to when the target has all."""
        self.announced = 0.0
        self.queue: deque[tuple[int, float]] | None = None
        """Messages that wait, and their bytes; None until one had to."""
        self.key = -1
        """The message on its way; -1 where none is."""
        self.left = self.rate = self.since = 0.0
        """Bytes not yet sent at `since`, and how fast they go; no rate where nobody has worked it out, or in line."""
        self.finish = self.event = NEVER
        """When the last byte is sent if nothing changes, and when the next event is, which is not later."""
        self.line: Shared | None = None
        """The crowd that holds it up."""
        self.until = 0.0
        """Bytes that those in line are served when its last one is sent."""
