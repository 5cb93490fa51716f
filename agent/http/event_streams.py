"""Event streams: writes an answer as server-sent events, and takes events from a generator that may be silent for long.
Door: asyncio, aiohttp's writers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import orjson
from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter

from edgepart.agent.http.deliveries import Deliveries

T = TypeVar("T")


class ClientLeft(ConnectionError):
    """The client hung up, or reads too slowly."""


class EventStream:
    """An answer that is sent in pieces. Each piece is a delivery of its own (deliveries.py): a client that does not read is
    cut off, however long the whole answer takes, and an answer that pauses is not held against its client."""

    def __init__(self, request: web.Request, deliveries: Deliveries) -> None:
        self._request = request
        self._deliveries = deliveries
        self._writer: AbstractStreamWriter | None = None
        # X-Accel-Buffering tells nginx to pass each piece on at once.
        self.response = web.StreamResponse(
            headers={
                hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8",
                hdrs.CACHE_CONTROL: "no-cache, no-store",
                "X-Accel-Buffering": "no",
            }
        )

    @property
    def begun(self) -> bool:
        """Whether the status was sent, so that an error has to be told as an event."""
        return self._writer is not None

    async def send(self, document: Mapping[str, Any]) -> None:
        await self._write(b"data: " + orjson.dumps(document) + b"\n\n")

    async def send_event(self, kind: str, document: Any, identity: str = "") -> None:
        """Send an event of a type of its own. A client that comes back names the last `identity` that it was sent."""
        data = document if isinstance(document, bytes) else orjson.dumps(document)
        number = f"id: {identity}\n" if identity else ""
        await self._write(f"{number}event: {kind}\ndata: ".encode() + data + b"\n\n")

    async def send_mark(self, mark: str) -> None:
        """Send a text that is no JSON."""
        await self._write(f"data: {mark}\n\n".encode())

    async def comment(self, text: str) -> None:
        """Send a line that clients ignore. It keeps proxies from ending a silent connection, and shows here whether the
        client is still there."""
        await self._write(f": {text}\n\n".encode())

    async def _write(self, data: bytes) -> None:
        try:
            if self._writer is None:
                self._writer = await self.response.prepare(self._request)
            assert self._writer is not None
            await self._deliveries.write((data,), self._writer)
        except ConnectionError as error:
            raise ClientLeft(str(error)) from error


async def paced(events: AsyncGenerator[T, None], quiet_s: float) -> AsyncGenerator[T | None, None]:
    """Yield the events, and None whenever none has come for `quiet_s`. The events are closed when this generator is.

    A task of its own takes all events, so that the generator may hold timeouts and locks from one event to the next. It is
    one event ahead of the reader at most."""
    came: asyncio.Queue[T | None] = asyncio.Queue()
    room = asyncio.Semaphore(1)

    async def take() -> None:
        async with aclosing(events):
            async for event in events:
                await room.acquire()
                came.put_nowait(event)

    taking = asyncio.create_task(take())
    taking.add_done_callback(lambda _: came.put_nowait(None))
    try:
        while True:
            try:
                async with asyncio.timeout(quiet_s):
                    event = await came.get()
            except TimeoutError:
                yield None
                continue
            if event is None:
                break
            room.release()
            yield event
        await taking
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
