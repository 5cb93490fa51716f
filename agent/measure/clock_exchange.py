"""Clock exchange: asks other agents for the time of their monotonic clocks. Door: the clock, the event loop; messages are
sent by a function that the caller gives.

Questions and answers are small frames on the control channel. The thread that reads a question answers it, and the thread
that reads an answer stamps it, so that neither an event loop nor a tensor delays them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable

from edgepart.agent.measure.clock_offset import Exchange, Offset, estimate_offset
from edgepart.agent.wire.queries import Clock, WantClock
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)

ROUNDS = 12
"""Number of exchanges for one estimate. With more, the shortest round trip is shorter; with fewer, the estimate is ready
sooner."""
PAUSE_S = 0.005
"""Seconds between two exchanges."""
ANSWER_S = 5.0
"""Seconds within which another agent must answer."""

SendClock = Callable[[str, WantClock | Clock], None]
"""send(node, message) sends on the control channel. Raises Unavailable if there is no link."""


class ClockExchange:
    """RpcClient for the time, and answers. `came` is for any thread, all other methods for the event loop's."""

    def __init__(self, send: SendClock) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._tickets = itertools.count(1)
        self._awaited: dict[int, tuple[str, asyncio.Future[tuple[float, float]]]] = {}

    def came(self, node: str, message: WantClock | Clock) -> None:
        """Take a question or an answer from another agent. Called in the reader's thread."""
        if isinstance(message, Clock):
            self._loop.call_soon_threadsafe(self._take_answer, node, message, time.monotonic())
            return
        try:
            self._send(node, Clock(message.ticket, time.monotonic()))
        except Unavailable as error:
            log.info("cannot tell %s the time: %s", node, error)

    async def offset(self, node: str) -> Offset:
        """The offset of the node's clock. Raises Unavailable if it does not answer, or there is no link."""
        exchanges = []
        for _ in range(ROUNDS):
            exchanges.append(await self._exchange(node))
            await asyncio.sleep(PAUSE_S)
        return estimate_offset(exchanges)

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

    def _take_answer(self, node: str, answer: Clock, back_s: float) -> None:
        asked, future = self._awaited.get(answer.ticket, ("", None))
        if future is not None and asked == node and not future.done():
            future.set_result((answer.now_s, back_s))
