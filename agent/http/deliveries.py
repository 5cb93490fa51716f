"""Deliveries: writes answers to clients, and bounds the memory that these answers take. A connection whose client reads too
slowly is closed, because its answer takes memory that others need. Door: aiohttp's writers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp.abc import AbstractStreamWriter

from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.http.buffers import Buffer, Buffers

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
"""The most bytes of an answer that are handed at once to the connection, which may copy them. With more, an answer takes
fewer turns of the event loop; with fewer, each client that reads slowly takes less memory."""
SMALL_BYTES = 64 << 10
"""Smaller answers are not accounted for, because the connection takes them at once."""


@dataclass(eq=False)
class Delivery:
    """One answer that is being written."""

    nbytes: int
    timer: asyncio.Timeout
    """Aborts the delivery when it expires."""
    sent: int = 0
    """Bytes written so far."""


class Deliveries:
    """Writes answers, and accounts for the memory of all that are being written."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self.held_bytes = 0
        self._under_way: dict[Delivery, None] = {}
        """The deliveries that are running, the oldest first."""

    def answer(self, buffers: Sequence[Buffer], kind: str) -> Buffers:
        """Return a body of the content type `kind`, which is accounted for while it is written, unless it is small."""
        small = sum(map(len, buffers)) < SMALL_BYTES
        return Buffers(buffers, kind) if small else _Answer(buffers, kind, self)

    async def write(self, buffers: Sequence[Buffer], writer: AbstractStreamWriter) -> None:
        """Write an answer. Raises ConnectionError if the delivery is aborted: the client read nothing for too long, was too
        slow, or had the oldest delivery when memory ran out."""
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout(None) as timer:
                with self._account(Delivery(sum(map(len, buffers)), timer)) as delivery:
                    for piece in split_buffers(buffers):
                        if delivery in self._under_way:  # Otherwise it was aborted just now.
                            timer.reschedule(self._limits.until(began, now(), delivery.sent))
                        await writer.write(piece)
                        delivery.sent += len(piece)
        except TimeoutError:
            log.info(
                "an answer of %d bytes is aborted: the client reads it too slowly", sum(map(len, buffers))
            )
            if (transport := getattr(writer, "transport", None)) is not None:
                transport.abort()  # Closing it would wait for the client.
            raise ConnectionAbortedError("the client reads too slowly") from None

    @contextmanager
    def _account(self, delivery: Delivery) -> Iterator[Delivery]:
        self._make_room(delivery.nbytes)
        self._under_way[delivery] = None
        self.held_bytes += delivery.nbytes
        try:
            yield delivery
        finally:
            self.held_bytes -= delivery.nbytes
            self._under_way.pop(delivery, None)

    def _make_room(self, nbytes: int) -> None:
        """Abort the oldest deliveries until `nbytes` more bytes fit within the limit."""
        leaving = 0
        for delivery in list(self._under_way):
            if self.held_bytes - leaving + nbytes <= self._limits.all_answers_bytes:
                return
            leaving += delivery.nbytes
            del self._under_way[delivery]
            if not delivery.timer.expired():
                delivery.timer.reschedule(asyncio.get_running_loop().time())


class _Answer(Buffers):
    def __init__(self, buffers: Sequence[Buffer], kind: str, deliveries: Deliveries) -> None:
        super().__init__(buffers, kind)
        self._deliveries = deliveries

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self._deliveries.write(self._buffers, writer)


def split_buffers(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the buffers, with those longer than PIECE_BYTES split into parts."""
    for buffer in buffers:
        if len(buffer) <= PIECE_BYTES:
            yield buffer
            continue
        view = memoryview(buffer)
        yield from (view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))
