"""Clocks: asks other agents what time it is, by their monotonic clocks. Door: the clock, the event loop; the wire is given.

Questions and answers are small frames on the control channel, answered in the thread that read them and stamped there when
they are back: neither an event loop nor a tensor is on their way.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable

from edgepart.agent.measure.clock_offset import Exchange, Offset, estimate
from edgepart.agent.wire.queries import Clock, WantClock
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)

ROUNDS = 12
"""Exchanges for one estimate. More: the least round trip is shorter; fewer: it is sooner there."""
PAUSE_S = 0.005
"""Between two of them."""
ANSWER_S = 5.0

SendClock = Callable[[str, WantClock | Clock], None]
"""(node, message), on the control channel. Raises Unavailable where there is no link."""


class Clocks:
    """Asks and answers. `came` is for any thread, all else for the event loop's."""

    def __init__(self, send: SendClock) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._tickets = itertools.count(1)
        self._awaited: dict[int, tuple[str, asyncio.Future[tuple[float, float]]]] = {}

    def came(self, node: str, message: WantClock | Clock) -> None:
        """From another agent, in the reader's thread."""
        if isinstance(message, Clock):
            self._loop.call_soon_threadsafe(self._told, node, message, time.monotonic())
            return
        try:
            self._send(node, Clock(message.ticket, time.monotonic()))
        except Unavailable as error:
            log.info("cannot tell %s the time: %s", node, error)

    async def offset(self, node: str) -> Offset:
        """Of its clock. Unavailable where it does not answer, or there is no link."""
        exchanges = []
        for _ in range(ROUNDS):
            exchanges.append(await self._exchange(node))
            await asyncio.sleep(PAUSE_S)
        return estimate(exchanges)

    async def _exchange(self, node: str) -> Exchange:
        ticket = next(self._tickets)
        future: asyncio.Future[tuple[float, float]] = self._loop.create_future()
        self._awaited[ticket] = node, future
        try:
            sent_s = time.monotonic()
            self._send(node, WantClock(ticket))
            async with asyncio.timeout(ANSWER_S):
                there_s, back_s = await future
        except TimeoutError:
            raise Unavailable(f"{node} did not tell the time within {ANSWER_S:.0f} s") from None
        finally:
            del self._awaited[ticket]
        return Exchange(sent_s, there_s, back_s)

    def _told(self, node: str, answer: Clock, back_s: float) -> None:
        asked, future = self._awaited.get(answer.ticket, ("", None))
        if future is not None and asked == node and not future.done():
            future.set_result((answer.now_s, back_s))
