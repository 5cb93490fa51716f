"""Streams of numbered logs over HTTP: as one document, and as server-sent events that go on where a reader was. Door:
aiohttp, asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from aiohttp import web

from edgepart.agent.chronicle.numbered_log import LogPage, NumberedLog
from edgepart.agent.http.answers import document_response
from edgepart.agent.http.event_streams import EventStream
from edgepart.agent.http.page.overview import entry_document, number_of
from edgepart.planner.errors import RequestError

T = TypeVar("T")

HEARTBEAT_S = 10.0
"""Seconds of silence after which a comment is sent: it keeps proxies from ending the connection, and shows whether the
reader is still there."""
LAST_SEEN = "Last-Event-ID"


def place_of(request: web.Request, log: NumberedLog[T]) -> int:
    """The number of the last entry that the reader has: what its browser says, or `?after=`; 0 if it has none."""
    return number_of(request.headers.get(LAST_SEEN, request.query.get("after", "")), log.life)


def log_response(request: web.Request, log: NumberedLog[T], name: str) -> web.Response:
    """The entries after the reader's place as one document, under `name`; the newest `?most=` of them. Raises
    RequestError."""
    text = request.query.get("most", "1000")
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise RequestError(f"most={text[:40]!r} is no number of entries")
    page = log.after(place_of(request, log))
    entries = page.entries[len(page.entries) - min(int(text), len(page.entries)) :]
    documents = [entry_document(number, log.life, entry) for number, entry in entries]
    return document_response({name: documents, "forgotten": page.forgotten})


async def send_page(stream: EventStream, log: NumberedLog[T], name: str, page: LogPage[T]) -> None:
    """Send entries as events of the type `name`, and before them what is missing."""
    if page.forgotten:
        await stream.send_event("gap", {"forgotten": page.forgotten})
    for number, entry in page.entries:
        document = entry_document(number, log.life, entry)
        await stream.send_event(name, document, document["id"])


async def follow(log: NumberedLog[T], place: int, ended: asyncio.Event) -> AsyncIterator[LogPage[T] | None]:
    """Yield the entries after `place`, then new ones as they come, and None whenever none came for HEARTBEAT_S, until
    `ended` is set."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    with log.listening(lambda: loop.call_soon_threadsafe(news.set)):
        while not ended.is_set():
            news.clear()
            page = log.after(place)
            if page.entries:
                place = page.entries[-1][0]
                yield page
                continue
            waiting = [asyncio.ensure_future(news.wait()), asyncio.ensure_future(ended.wait())]
            try:
                done, _ = await asyncio.wait(
                    waiting, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                for one in waiting:
                    one.cancel()
            if not done:
                yield None
