"""Turns: requests that wait go to the agent in a fair order: a client with many waits no less for each than one with a few.
Door: asyncio.

A **lane** is what requests stand in line for: a deployment, with the shapes of the inputs, as those of new shapes may
have to wait for a plan of their own. Of a lane so many requests are with the agent at once; the others wait here, each
client in a line of its own, and the next one is of the client that has the fewest with the agent.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

AT_ONCE = 32
"""Requests of a lane with the agent. More: fuller pipelines; fewer: who comes with few requests waits less for who came
with many. The agent itself has no more under way for a plan without replicas than half as many."""


@dataclass
class Line:
    """A lane, as rules: who waits, who is with the agent."""

    at_once: int = AT_ONCE
    under_way: Counter[str] = field(default_factory=Counter)
    """By client."""
    waiting: dict[str, deque[asyncio.Future[None]]] = field(default_factory=dict)
    """By client, in the order in which clients are served next."""

    @property
    def has_room(self) -> bool:
        return self.under_way.total() < self.at_once

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.under_way

    def next(self) -> tuple[str, asyncio.Future[None]] | None:
        """Takes out of the line whose turn it is: of the client with the fewest under way; of several, of the one that was
        served longest ago."""
        if not self.waiting:
            return None
        client = min(self.waiting, key=lambda one: self.under_way[one])
        line = self.waiting.pop(client)
        first = line.popleft()
        if line:
            self.waiting[client] = line  # behind the others
        return client, first

    def gone(self, client: str, one: asyncio.Future[None]) -> None:
        """One of `client` does not wait any more, if it still did."""
        line = self.waiting.get(client, deque())
        if one in line:
            line.remove(one)
            if not line:
                del self.waiting[client]

    def end(self, client: str) -> None:
        """One of `client` is not with the agent any more."""
        self.under_way[client] -= 1
        if not self.under_way[client]:
            del self.under_way[client]


class Turns:
    """All lanes. For the event loop's thread."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._lines: dict[Hashable, Line] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait here, of all lanes."""
        return sum(len(line) for lane in self._lines.values() for line in lane.waiting.values())

    @asynccontextmanager
    async def turn(self, lane: Hashable, client: str) -> AsyncIterator[None]:
        """Begins when it is a request's turn; it is with the agent until the block ends."""
        line = self._lines.setdefault(lane, Line(self._at_once))
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

    async def _come(self, line: Line, client: str) -> None:
        if line.has_room and not line.waiting:
            line.under_way[client] += 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.setdefault(client, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # It was its turn, at the same moment.
                line.end(client)
                self._go_on(line)
            else:
                line.gone(client, mine)
            raise

    def _go_on(self, line: Line) -> None:
        while line.has_room and (found := line.next()) is not None:
            client, one = found
            if not one.done():
                line.under_way[client] += 1
                one.set_result(None)
