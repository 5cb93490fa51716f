"""The network: moves bytes between devices in virtual time. Pure rules; the simulation owns the events.

A **way** is one direction between two devices; its messages are sent one after another. The ways that carry a
message at the same time **share** the resources that they have in common: a device's network card (where
sending and receiving do not disturb each other), and media, which carry both directions.

Sharing is processor sharing of a fluid: a card or medium offers all its ways the same rate, and the rate that
a way cannot use, because its own link is slower, is offered to the others. A way has the lowest of the
offered rates and its link's rate. (This is not max-min fairness: the rate that a way cannot use because it is
limited *elsewhere* is not offered to others. So a change affects only the ways of one card, which keeps many
thousands of messages cheap.)

The fixed cost of a message occupies both cards like the bytes that could be sent meanwhile, so that many
small messages of one device follow each other. Latency and the receiver's own fixed cost come after, and
occupy nothing.

In a crowd, a change does not affect most ways (planner/simulation/fair_share.py explains why). `_pace` sets
rates while there is no crowd anywhere, `_place` while there is one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace
from math import sqrt

from edgepart.planner.devices.cluster import LOCAL, Cluster
from edgepart.planner.simulation.fair_share import NEVER, LinkDirection, SharedResource

Events = list[tuple[float, int]]
"""A heap of (seconds, code); codes below 0 belong to ways, the others to the simulation."""

CROWD = 32
"""The number of simultaneous ways that makes a crowd; the crowd lasts until there are less than half as many.
With fewer ways, an account for each is about as quick, and it is quicker if all devices send to all and the
limiting resources keep changing."""


class Network:
    """The ways of a cluster that are in use, and the messages on them."""

    def __init__(self, cluster: Cluster, events: Events) -> None:
        self.events = events
        self.known = LinkDirections(cluster)
        self.ways, self.shared = self.known.ways, self.known.shared
        self.changed: dict[SharedResource, None] = {}
        """Resources on which the number of active ways changed: call `settle` before time advances."""
        self.fresh: list[LinkDirection] = []
        """Ways that started on a resource in `changed` and have no rate yet."""
        self.crowds = 0
        """The number of resources with a crowd."""
        self._moved: dict[SharedResource, None] = {}
        """Crowds whose line or rate changed."""

    def start(self, way: LinkDirection, key: int, nbytes: float, now: float) -> bool:
        """Starts a message; its `nbytes` include its fixed cost. False if it has to wait for earlier messages."""
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
                if one.line is not None:
                    insort(one.wants, (way.alone, count))
                    one.crossings += count
            else:
                one.offered, one.reach = NEVER, 0.0
            one.carrying[way] = count
        if free:
            way.rate = way.alone
            way.finish = way.event = now + nbytes / way.alone
            heappush(self.events, (way.event, way.code))
        else:
            way.rate, way.finish, way.event = 0.0, NEVER, NEVER
            self.fresh.append(way)
        return True

    def end(self, way: LinkDirection, now: float) -> int:
        """Handles an event of the way: returns the key of the message that is completely sent, or -1 if there
        is none. The way's next message, if any, has then started."""
        if now != way.event:
            return -1  # Overtaken by another event.
        if now < way.finish:
            way.event = way.finish
            heappush(self.events, (way.finish, way.code))
            return -1
        key = way.key
        if way.line is not None:
            self._next_in_line(way, way.line, now)
        elif way.queue:  # Nothing changes for other ways.
            way.key, way.left = way.queue.popleft()
            way.since = now
            way.finish = way.event = now + way.left / way.rate
            heappush(self.events, (way.finish, way.code))
        else:
            self._leave(way)
        return key

    def settle(self, now: float) -> None:
        """Updates the offers of the resources in `changed`, and the rates of fresh ways and of ways that a
        change may affect."""
        felt: list[Iterable[LinkDirection]] = [self.fresh]
        for one in self.changed:
            quiet = one.line is None and len(one.carrying) < CROWD
            offered = one.offer() if quiet else self._crowd(one, now)
            if offered != one.offered:
                one.offered = offered
                if not self.crowds or offered > one.reach or offered < one.most:
                    one.reach, one.most = NEVER, 0.0
                    felt.append(one.carrying)
        if self.crowds:
            for ways in felt:
                for way in ways:
                    self._place(way, now)
            for one in self._moved:
                self._line_up(one, now)
            self._moved.clear()
        else:
            for ways in felt:
                self._pace(ways, now)
        self.changed.clear()
        self.fresh.clear()

    def _pace(self, ways: Iterable[LinkDirection], now: float) -> None:
        """Sets the rate of each way while there is no crowd. A simulation spends most of its time here, so
        `_carry` is inlined."""
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

    def _carry(self, way: LinkDirection, rate: float, now: float) -> None:
        """Lets the way send at that rate from `now` on, with an account of its own."""
        if way.rate:
            left = way.left - (now - way.since) * way.rate
            way.left = left if left > 0.0 else 0.0
        way.since, way.rate = now, rate
        way.finish = finish = now + way.left / rate
        if finish < way.event:
            way.event = finish
            heappush(self.events, (finish, way.code))

    def _leave(self, way: LinkDirection) -> None:
        """Removes a way that has nothing more to send from its resources."""
        way.key, way.finish, way.event = -1, NEVER, NEVER
        for one, count in way.shared:
            del one.carrying[way]
            if one.carrying:
                self.changed[one] = None
            if one.line is not None:
                del one.wants[bisect_left(one.wants, (way.alone, count))]
                one.crossings -= count
                if not one.wants:
                    self._disband(one)

    def _crowd(self, one: SharedResource, now: float) -> float:
        """Returns the offer of a resource that has a crowd, gets one, or loses it."""
        if one.line is None:
            if not self.crowds:
                for other in self.shared.values():
                    other.reach = 0.0  # Without a crowd, `reach` was not kept up to date.
            self.crowds += 1
            one.line, one.served, one.since, one.reach = [], 0.0, now, 0.0
            one.wants = sorted([(way.alone, count) for way, count in one.carrying.items()])
            one.crossings = sum(one.carrying.values())
            return one.offer()
        one.served, one.since = one.served_at(now) if one.line else 0.0, now
        if 2 * len(one.carrying) >= CROWD:
            self._moved[one] = None
            return one.offer()
        for way in one.carrying:
            if way.line is one:
                self._step_out(way, one, now)
                self._carry(way, one.offered, now)
        self._disband(one)
        return one.offer()

    def _disband(self, one: SharedResource) -> None:
        self.crowds -= 1
        one.line, one.first, one.reach = None, None, 0.0
        self._moved.pop(one, None)

    def _place(self, way: LinkDirection, now: float) -> None:
        """Sets the way's rate, or its place in the line of the crowd that limits it, and updates `reach` and `most`."""
        rate = second = way.alone
        held: SharedResource | None = None
        for one, _ in way.shared:
            if one.offered < rate:
                rate, second, held = one.offered, rate, one
            elif one.offered < second:
                second = one.offered
        line = held if held is not None and held.line is not None else None
        if way.line is not None and way.line is not line:
            self._step_out(way, way.line, now)
        if line is None:
            if rate != way.rate:
                self._carry(way, rate, now)
            bound, reach = rate, 0.0
        else:
            if way.line is None:
                self._join(way, line, now)
            # The geometric mean of the two rates, so that small changes affect ways neither here nor elsewhere.
            bound = reach = min(max(rate, sqrt(rate * second)), second)
        for one, _ in way.shared:
            if one is held:
                one.reach = min(one.reach, reach)
            elif one.most < bound:
                one.most = bound

    def _join(self, way: LinkDirection, one: SharedResource, now: float) -> None:
        if way.rate:
            way.left = max(0.0, way.left - (now - way.since) * way.rate)
        way.until, way.line = one.served_at(now) + way.left, one
        way.rate, way.finish, way.event = 0.0, NEVER, NEVER
        assert one.line is not None
        heappush(one.line, (way.until, way.code))
        self._moved[one] = None

    def _step_out(self, way: LinkDirection, one: SharedResource, now: float) -> None:
        way.left, way.since = max(0.0, way.until - one.served_at(now)), now
        way.line, way.finish, way.event = None, NEVER, NEVER
        self._moved[one] = None

    def _next_in_line(self, way: LinkDirection, one: SharedResource, now: float) -> None:
        """Ends the message of the first way in line: the way joins the line again with its next message, or leaves."""
        assert one.line is not None
        one.served, one.since = way.until, now
        way.finish = way.event = NEVER
        if way.queue:
            way.key, nbytes = way.queue.popleft()
            way.until += nbytes
            heapreplace(one.line, (way.until, way.code))
        else:
            heappop(one.line)
            way.line = None
            self._leave(way)
        self._line_up(one, now)

    def _line_up(self, one: SharedResource, now: float) -> None:
        """Assigns the event of the line to the way that is first in it."""
        line, first = one.line, None
        while line:
            until, code = line[0]
            first = self.ways[-1 - code]
            if first.line is one and first.until == until:
                break
            heappop(line)  # This way has left the line.
            first = None
        if one.first is not None and one.first is not first and one.first.line is one:
            one.first.finish = one.first.event = NEVER
        one.first = first
        if first is not None:
            left = first.until - one.served_at(now)
            first.finish = finish = now + left / one.offered if left > 0.0 else now
            if finish < first.event:
                first.event = finish
                heappush(self.events, (finish, first.code))


def local_transfer_s(nbytes: float) -> float:
    """Seconds that a message takes between the gateway and its own device, where nothing is shared."""
    return 2 * LOCAL.message_s + LOCAL.latency_s + nbytes / LOCAL.bytes_per_s


class LinkDirections:
    """The ways of one cluster, created when they are first used, and the resources that they share."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ways: list[LinkDirection] = []
        """The ways by number; the first has the code -1, the second -2, and so on."""
        self.shared: dict[tuple[str, str], SharedResource] = {}
        """The shared resources by kind and name."""
        self._by_ends: dict[tuple[str, str], LinkDirection] = {}

    def way(self, source: str, target: str) -> LinkDirection:
        """The way from one device to another; creates it on first use."""
        found = self._by_ends.get((source, target))
        if found is None:
            found = self._by_ends[source, target] = self._open(source, target)
        return found

    def loads_s(self) -> dict[tuple[str, ...], float]:
        """The fewest seconds for which the announced bytes occupy each card, medium and link."""
        crossing = dict.fromkeys(self.shared.values(), 0.0)
        for way in self.ways:
            for one, count in way.shared:
                crossing[one] += way.announced * count
        found: dict[tuple[str, ...], float] = {
            (one.kind, one.name): nbytes / one.bytes_per_s for one, nbytes in crossing.items()
        }
        found.update({("link", way.source, way.target): way.announced / way.alone for way in self.ways})
        return found

    def _open(self, source: str, target: str) -> LinkDirection:
        link = self.cluster.link(source, target)
        crossed: list[tuple[SharedResource, int]] = []
        for here, there in self.cluster.hops(source, target):
            send = self._share("send", here, self.cluster.sending_bytes_per_s[here])
            receive = self._share("receive", there, self.cluster.receiving_bytes_per_s[there])
            crossed += [(send, 1), (receive, 1)]
        alone = min(link.bytes_per_s, *(one.bytes_per_s for one, _ in crossed))
        for medium in self.cluster.media:
            if count := self.cluster.crossings(medium, source, target):
                crossed.append((self._share("medium", medium.name, medium.bytes_per_s), count))
                alone = min(alone, medium.bytes_per_s / count)
        way = LinkDirection(source, target, -1 - len(self.ways), alone, tuple(crossed))
        way.fixed, way.after_s = link.message_s * alone, link.latency_s + link.message_s
        for one, _ in crossed:
            if alone < one.slowest:
                one.slowest = alone
        self.ways.append(way)
        return way

    def _share(self, kind: str, name: str, bytes_per_s: float) -> SharedResource:
        found = self.shared.get((kind, name))
        if found is None:
            found = self.shared[kind, name] = SharedResource(kind, name, bytes_per_s)
        return found
