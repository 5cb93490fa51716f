"""Network: bytes on their way between devices, in virtual time. Rules only; whoever simulates keeps the events.

A **way** is one direction between two devices: what is sent on it goes one message after another. What several
ways have in common is **shared** among those that carry something at that moment: a device's network card (what
it sends and what it receives do not disturb each other), and media, which carry both directions.

Sharing is processor sharing of a fluid: a card or medium offers all its ways the same rate, and what one cannot
use, because its own link is slower, is offered to the others. A way carries at the least of what it is offered
and what its link can. (Not max-min: what a way cannot use because it is held up *elsewhere* is not handed on. So
a change is felt by the ways of one card only, which keeps many thousands of messages cheap.)

The fixed cost of a message occupies both cards like the bytes that could go meanwhile, so that many small
messages of one device follow each other. Latency and the receiver's own fixed cost come after, and disturb nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappush

from edgepart.planner.cluster import LOCAL, Cluster, Medium

Events = list[tuple[float, int]]
"""A heap of (seconds, code); codes below 0 are ways', the others the simulation's."""

NEVER = float("inf")


def even_rate(bytes_per_s: float, demands: Iterable[tuple[float, int]]) -> float:
    """What is offered to each, where all want (their own bytes_per_s, at so many crossings); inf where everybody has
    what they want.

    >>> even_rate(10.0, [(1.0, 1), (9.0, 1), (9.0, 1)])
    4.5
    """
    wants = sorted(demands)
    left, crossings = bytes_per_s, sum(count for _, count in wants)
    for rate, count in wants:
        if rate * crossings >= left:
            return left / crossings
        left -= rate * count
        crossings -= count
    return NEVER


class Shared:
    """One direction of a network card, or a medium."""

    __slots__ = ("bytes_per_s", "carrying", "crossings", "kind", "name", "offered", "slowest", "ways")

    def __init__(self, kind: str, name: str, bytes_per_s: float) -> None:
        self.kind, self.name, self.bytes_per_s = kind, name, bytes_per_s
        self.ways: dict[Way, int] = {}
        """All that ever go through it, and how often each crosses it."""
        self.carrying: dict[Way, int] = {}
        """Those that carry something now."""
        self.crossings = 0
        """How often all of these cross it."""
        self.slowest = NEVER
        """The least that any of `ways` has alone."""
        self.offered = NEVER

    def offer(self) -> float:
        """What is to be offered to each way, worked out anew."""
        if len(self.carrying) < 2:
            return NEVER  # No way is faster than what it goes through.
        even = self.bytes_per_s / self.crossings
        if self.slowest < even:
            for way in self.carrying:
                if way.alone < even:
                    return even_rate(self.bytes_per_s, [(w.alone, n) for w, n in self.carrying.items()])
        return even

    @property
    def load_s(self) -> float:
        """Seconds that all that was announced keeps it busy, at least."""
        return sum(way.announced * count for way, count in self.ways.items()) / self.bytes_per_s


class Way:
    """One direction between two devices, and the message on it."""

    __slots__ = ("after_s", "alone", "announced", "code", "event", "finish", "fixed", "key", "left", "queue",
                 "rate", "shared", "since", "source", "target")  # fmt: skip

    def __init__(self, source: str, target: str, code: int) -> None:
        self.source, self.target, self.code = source, target, code
        self.alone = 0.0
        """Bytes a second when nothing else goes on."""
        self.fixed = 0.0
        """Bytes that could go in the time of a message's fixed cost."""
        self.after_s = 0.0
        """From the last byte sent to when the target has all."""
        self.announced = 0.0
        self.shared: tuple[tuple[Shared, int], ...] = ()
        """What it goes through, and how often it crosses that."""
        self.queue: deque[tuple[int, float]] | None = None
        """Messages that wait, and their bytes; None until one had to."""
        self.key = -1
        """The message on its way; -1 where none is."""
        self.left = self.rate = self.since = 0.0
        """Bytes not yet sent at `since`, and how fast they go."""
        self.finish = self.event = NEVER
        """When the last byte is sent if nothing changes, and when the next event is, which is not later."""


class Network:
    """All ways of a cluster that are used, and what they carry."""

    def __init__(self, cluster: Cluster, events: Events) -> None:
        self.cluster = cluster
        self.events = events
        self.ways: list[Way] = []
        """The way of code -1 is the first, and so on."""
        self.shared: dict[tuple[str, str], Shared] = {}
        """By kind and name."""
        self.changed: dict[Shared, None] = {}
        """Where the number of ways that carry something changed: `settle` before time goes on."""
        self.fresh: list[Way] = []
        """Those that began on something `changed`: they have no rate yet."""
        self._by_ends: dict[tuple[str, str], Way] = {}

    def way(self, source: str, target: str) -> Way:
        """The one way between two different devices."""
        found = self._by_ends.get((source, target))
        return self._open(source, target) if found is None else found

    def start(self, way: Way, key: int, nbytes: float, now: float) -> bool:
        """A message, fixed cost included in its bytes; False where it waits for those before it."""
        if way.key >= 0:
            if way.queue is None:
                way.queue = deque()
            way.queue.append((key, nbytes))
            return False
        way.key, way.left, way.since = key, nbytes, now
        free = True
        for one, count in way.shared:
            if one.carrying:
                self.changed[one] = None
                free = False
            else:
                one.offered = NEVER
            one.carrying[way] = count
            one.crossings += count
        if free:
            way.rate = way.alone
            way.finish = way.event = now + nbytes / way.alone
            heappush(self.events, (way.event, way.code))
        else:
            way.rate, way.finish, way.event = 0.0, NEVER, NEVER
            self.fresh.append(way)
        return True

    def end(self, way: Way, now: float) -> int:
        """At an event of the way: the key of the message that is all sent; -1 where there is none. Then the next one
        of the way is on it already."""
        if now != way.event:
            return -1  # Overtaken by another event.
        if now < way.finish:
            way.event = way.finish
            heappush(self.events, (way.finish, way.code))
            return -1
        key = way.key
        if way.queue:  # Nothing changes for others.
            way.key, way.left = way.queue.popleft()
            way.since = now
            way.finish = way.event = now + way.left / way.rate
            heappush(self.events, (way.finish, way.code))
            return key
        way.key, way.finish, way.event = -1, NEVER, NEVER
        for one, count in way.shared:
            del one.carrying[way]
            one.crossings -= count
            if one.carrying:
                self.changed[one] = None
        return key

    def settle(self, now: float) -> None:
        """New rates, where `changed`: of those that began, and of all where what is offered is not what it was."""
        felt: list[Iterable[Way]] = [self.fresh]
        for one in self.changed:
            offered = one.offer()
            if offered != one.offered:
                one.offered = offered
                felt.append(one.carrying)
        for ways in felt:
            for way in ways:
                rate = way.alone
                for one, _ in way.shared:
                    if one.offered < rate:
                        rate = one.offered
                if rate != way.rate:
                    if way.rate:
                        left = way.left - (now - way.since) * way.rate
                        way.left = left if left > 0.0 else 0.0
                    way.since, way.rate = now, rate
                    way.finish = finish = now + way.left / rate
                    if finish < way.event:
                        way.event = finish
                        heappush(self.events, (finish, way.code))
        self.changed.clear()
        self.fresh.clear()

    def _open(self, source: str, target: str) -> Way:
        link = self.cluster.link(source, target)
        way = Way(source, target, -1 - len(self.ways))
        crossed = {self._card("send", source): 1, self._card("receive", target): 1}
        for medium in self.cluster.media:
            if count := medium.crossings(source, target):
                crossed[self._medium(medium)] = count
        way.alone = min([link.bytes_per_s, *(one.bytes_per_s / count for one, count in crossed.items())])
        way.fixed, way.after_s = link.message_s * way.alone, link.latency_s + link.message_s
        way.shared = tuple(crossed.items())
        for one, count in crossed.items():
            one.ways[way] = count
            one.slowest = min(one.slowest, way.alone)
        self.ways.append(way)
        self._by_ends[source, target] = way
        return way

    def _card(self, kind: str, device: str) -> Shared:
        found = self.shared.get((kind, device))
        if found is None:
            found = Shared(kind, device, self.cluster.card_bytes_per_s[device])
            self.shared[kind, device] = found
        return found

    def _medium(self, medium: Medium) -> Shared:
        found = self.shared.get(("medium", medium.name))
        if found is None:
            found = Shared("medium", medium.name, medium.bytes_per_s)
            self.shared["medium", medium.name] = found
        return found


def local_s(nbytes: float) -> float:
    """Seconds from the gateway to its own device, or back: nothing is shared there."""
    return 2 * LOCAL.message_s + LOCAL.latency_s + nbytes / LOCAL.bytes_per_s
