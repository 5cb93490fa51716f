"""Deliveries: writes answers to HTTP's clients, piece by piece. Each is accounted for while it is written
(answer_memory.py). Door: aiohttp's writers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from aiohttp.abc import AbstractStreamWriter

from edgepart.agent.gateway.answer_memory import AnswerMemory
from edgepart.agent.http.buffers import Buffer, Buffers

PIECE_BYTES = 1 << 20
"""The most bytes of an answer that are handed at once to the connection, which may copy them. With more, an answer takes
fewer turns of the event loop; with fewer, each client that reads slowly takes less memory."""
SMALL_BYTES = 64 << 10
"""Smaller answers are not accounted for, because the connection takes them at once."""


class Deliveries:
    """Writes answers, for whose memory `memory` accounts."""

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory

    def answer(self, buffers: Sequence[Buffer], kind: str) -> Buffers:
        """Return a body of the content type `kind`, which is accounted for while it is written, unless it is small."""
        small = sum(map(len, buffers)) < SMALL_BYTES
        return Buffers(buffers, kind) if small else _Answer(buffers, kind, self)

    async def write(self, buffers: Sequence[Buffer], writer: AbstractStreamWriter) -> None:
        """Write an answer. Raises ConnectionError if the delivery is aborted: the client read nothing for too long, was too
        slow, or had the oldest delivery when memory ran out."""
        now = asyncio.get_running_loop().time
        began, sent = now(), 0
        try:
            async with self._memory.delivering(sum(map(len, buffers))) as delivery:
                for piece in split_buffers(buffers):
                    delivery.patience(self._memory.limits.until(began, now(), sent))
                    await writer.write(piece)
                    sent += len(piece)
        except ConnectionAbortedError:
            if (transport := getattr(writer, "transport", None)) is not None:
                transport.abort()  # Closing it would wait for the client.
            raise


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
