"""Answer memory: bounds the memory of the answers that clients have not read yet. What a client reads too slowly is given
up, because its answer takes memory that others need. Door: the event loop's timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from edgepart.agent.gateway.limits import BodyLimits

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Delivery:
    """One answer that is being written."""

    nbytes: int
    timer: asyncio.Timeout
    """Aborts the delivery when it expires."""
    given_up: bool = False
    """Whether it was aborted because others need its memory."""

    def patience(self, until: float) -> None:
        """Have the delivery aborted at `until`, a time of the event loop, unless it was aborted just now."""
        if not self.given_up:
            self.timer.reschedule(until)


class AnswerMemory:
    """Accounts for the memory of all answers that are being written."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self._under_way: dict[Delivery, None] = {}
        """The deliveries that are running, the oldest first."""

    @asynccontextmanager
    async def delivering(self, nbytes: int) -> AsyncIterator[Delivery]:
        """Account for an answer until the block ends, which writes it and sets the delivery's `patience`. Raises
        ConnectionError if the delivery is aborted: the client was too slow, or had the oldest delivery when memory ran
        out."""
        try:
            async with asyncio.timeout(None) as timer:
                delivery = Delivery(nbytes, timer)
                self._make_room(nbytes)
                self._under_way[delivery] = None
                self.held_bytes += nbytes
                try:
                    yield delivery
                finally:
                    self.held_bytes -= nbytes
                    self._under_way.pop(delivery, None)
        except TimeoutError:
            log.info("an answer of %d bytes is aborted: the client reads it too slowly", nbytes)
            raise ConnectionAbortedError("the client reads too slowly") from None

    def _make_room(self, nbytes: int) -> None:
        """Abort the oldest deliveries until `nbytes` more bytes fit within the limit."""
        leaving = 0
        for delivery in list(self._under_way):
            if self.held_bytes - leaving + nbytes <= self.limits.all_answers_bytes:
                return
            leaving += delivery.nbytes
            del self._under_way[delivery]
            delivery.given_up = True
            if not delivery.timer.expired():
                delivery.timer.reschedule(asyncio.get_running_loop().time())
