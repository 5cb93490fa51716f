"""Arrivals: lets few messages arrive at a time, each client in its turn. Door: the event loop's clock.

The library tells of a message when all of it is here, so its bytes cannot be counted while they come, as those of a body
can be in HTTP. What messages may take of memory is bounded by how many arrive at once. Each is asked for only in its turn;
until then the library leaves all but its begin with the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from edgepart.agent.gateway.admission import LaneTurns
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.planner.errors import RequestError

T = TypeVar("T")


class Arrivals:
    """Gives turns to messages that are to arrive. It belongs to the event loop's thread."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._turns = LaneTurns(max(1, limits.all_requests_bytes // limits.request_bytes))

    async def read(self, lane: Hashable, client: str, receive: Callable[[], Awaitable[T]]) -> T:
        """Return what `receive` returns, which waits for a message of `client`, when it is the message's turn among those
        of its lane. Raises RequestError if the message takes longer than `body_s`, or than `stall_s` while others wait."""
        now = asyncio.get_running_loop().time
        async with self._turns.turn(lane, client):
            began, arriving = now(), asyncio.ensure_future(receive())
            try:
                while not (await asyncio.wait((arriving,), timeout=self._limits.stall_s))[0]:
                    if self._turns.waiting or now() - began >= self._limits.body_s:
                        raise RequestError(
                            f"the message has not arrived in {now() - began:.0f} s; send large ones over HTTP"
                        )
                return arriving.result()
            finally:
                arriving.cancel()
