"""Admission: decides which requests may enter the gateway, and in which order waiting ones continue. Door: asyncio.

There is a fixed number of places. Half of them go to the clients that come first, the other half is shared so that no
client has more than its share, and the last few are reserved for clients that have none. A refused client is told when a
place may be free, judged by how fast places became free lately.

A **lane** is a queue for one deployment and set of input shapes, because requests of a new shape may have to wait for a
plan. A lane sends a bounded number of requests to the agent at once. The others wait, each client's in a queue of its own,
and the client with the fewest running requests is next.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from edgepart.planner.errors import Unavailable

PLACES_PER_RESERVED = 8
"""One place of this many is reserved for clients that have none yet."""
LEAST_RETRY_S, MOST_RETRY_S = 1.0, 30.0
DEPARTURES_AVERAGED = 16
"""The time between departures is averaged over about this many departures."""


class AdmissionPlaces:
    """Counts the places that requests take, by the client's address."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._by_client: Counter[str] = Counter()
        self._left_at: float | None = None
        self._between_s = 0.0
        """Average seconds between two departures lately, while more than half of the places were taken."""

    def check(self, client: str) -> None:
        """Raises Unavailable if there is no place for a request of `client` now."""
        if (why := self._refusal(client)) is not None:
            raise Unavailable(why, self.retry_after_s)

    def take(self, client: str) -> None:
        """Check as `check` does, and take a place, which `leave` frees."""
        self.check(client)
        self.taken += 1
        self._by_client[client] += 1

    def leave(self, client: str, now: float) -> None:
        """Free the place of a request of `client`, which was answered."""
        if self._left_at is not None and 2 * self.taken > self.total:
            self._between_s += (now - self._left_at - self._between_s) / DEPARTURES_AVERAGED
        self._left_at = now
        self.taken -= 1
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    @property
    def retry_after_s(self) -> float:
        """About how many seconds it takes until the requests that have places now are answered."""
        return min(max(self.taken * self._between_s, LEAST_RETRY_S), MOST_RETRY_S)

    def share(self, client: str) -> int:
        """The number of places that `client` may have while at least half of all are taken."""
        clients = len(self._by_client) + (client not in self._by_client)
        return max(1, (self.total - self.total // PLACES_PER_RESERVED) // clients)

    def _refusal(self, client: str) -> str | None:
        mine = self._by_client.get(client, 0)
        if self.taken >= self.total:
            return f"{self.taken} requests are in flight here, and no more are taken now"
        if mine and 2 * self.taken >= self.total and mine >= self.share(client):
            return f"{mine} requests of yours are in flight here, which is your part while others are served, too"
        return None


LANE_REQUESTS_AT_ONCE = 32
"""The most requests of a lane that the agent has at once. With more, pipelines are fuller; with fewer, clients with few
requests wait less for clients with many. The agent starts at most half as many at once for a plan without replicas."""


@dataclass
class LaneQueue:
    """The rules of one lane: which requests wait, and which ones the agent has."""

    at_once: int = LANE_REQUESTS_AT_ONCE
    under_way: Counter[str] = field(default_factory=Counter)
    """Number of requests that the agent has, by client."""
    waiting: dict[str, deque[asyncio.Future[None]]] = field(default_factory=dict)
    """Waiting requests by client; the client that was served longest ago comes first."""

    @property
    def has_room(self) -> bool:
        return self.under_way.total() < self.at_once

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.under_way

    def next(self) -> tuple[str, asyncio.Future[None]] | None:
        """Take the next request out of the queue. It belongs to the client with the fewest running requests; of several
        such clients, to the one that was served longest ago."""
        if not self.waiting:
            return None
        client = min(self.waiting, key=lambda one: self.under_way[one])
        line = self.waiting.pop(client)
        first = line.popleft()
        if line:
            self.waiting[client] = line  # Behind the other clients.
        return client, first

    def gone(self, client: str, one: asyncio.Future[None]) -> None:
        """Remove a request of `client` that gave up waiting, if it is still in the queue."""
        line = self.waiting.get(client, deque())
        if one in line:
            line.remove(one)
            if not line:
                del self.waiting[client]

    def end(self, client: str) -> None:
        """Count a request of `client` that the agent has answered."""
        self.under_way[client] -= 1
        if not self.under_way[client]:
            del self.under_way[client]


class LaneTurns:
    """Gives turns to the requests in all lanes. It belongs to the event loop's thread."""

    def __init__(self, at_once: int = LANE_REQUESTS_AT_ONCE) -> None:
        self._at_once = at_once
        self._lines: dict[Hashable, LaneQueue] = {}

    @property
    def waiting(self) -> int:
        """Number of requests that wait, in all lanes."""
        return sum(len(line) for lane in self._lines.values() for line in lane.waiting.values())

    @asynccontextmanager
    async def turn(self, lane: Hashable, client: str) -> AsyncIterator[None]:
        """Wait for a request's turn. The request counts as being with the agent until the block ends."""
        line = self._lines.setdefault(lane, LaneQueue(self._at_once))
        try:
            await self._come(line, client)
            try:
                yield
            finally:
                line.end(client)
                self._go_on(line)
        finally:
            if line.is_empty:
                self._lines.pop(lane, None)

    async def _come(self, line: LaneQueue, client: str) -> None:
        if line.has_room and not line.waiting:
            line.under_way[client] += 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.setdefault(client, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # Its turn came at the same moment.
                line.end(client)
                self._go_on(line)
            else:
                line.gone(client, mine)
            raise

    def _go_on(self, line: LaneQueue) -> None:
        while line.has_room and (found := line.next()) is not None:
            client, one = found
            if not one.done():
                line.under_way[client] += 1
                one.set_result(None)
