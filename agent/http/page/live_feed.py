"""Live feed: makes the page's documents while somebody reads them, and hands each reader those that changed. Door: asyncio.

All readers share one task. It runs as long as there is a reader, so that an agent at which nobody looks does nothing. A
reader that is slow gets the newest version of each document, and not those in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson

from edgepart.planner.errors import EdgepartError, Unavailable

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""Seconds after which documents are made again, though nothing was told: figures of requests change all the time. A shorter
time shows them sooner, and takes more of the processor while somebody looks."""
GAP_S = 0.2
"""The least time between two versions, however much happens."""
MOST_READERS = 32
"""The most readers at once; each takes a connection and some 100 kB."""


class FeedReader:
    """One reader of the feed."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._news = asyncio.Event()
        self._ended = False

    def offer(self, name: str, document: bytes) -> None:
        """Replace the version of a document that the reader has not taken yet."""
        self._waiting.pop(name, None)
        self._waiting[name] = document
        self._news.set()

    def wake(self) -> None:
        """Have `take` return, though no document changed."""
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def take(self, quiet_s: float) -> dict[str, bytes] | None:
        """Wait for news for `quiet_s` at most, and return the documents that changed, by name; None if the feed ended."""
        try:
            async with asyncio.timeout(quiet_s):
                await self._news.wait()
        except TimeoutError:
            return {}
        self._news.clear()
        if self._ended:
            return None
        taken, self._waiting = self._waiting, {}
        return taken


class LiveFeed:
    """The feed of one agent. It belongs to the event loop's thread."""

    def __init__(self, compose: Callable[[], Mapping[str, Any]]) -> None:
        """`compose` makes all documents, by name."""
        self._compose = compose
        self._readers: set[FeedReader] = set()
        self._versions: dict[str, bytes] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether anything is done at all."""
        return self._task is not None

    def hint(self) -> None:
        """Say that something changed, so that it is shown at once."""
        self._news.set()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[FeedReader]:
        """A reader, which gets all documents first. Raises Unavailable if there are too many already."""
        if len(self._readers) >= MOST_READERS:
            raise Unavailable(
                f"{MOST_READERS} pages are open on this agent; close one, or open another agent's"
            )
        reader = FeedReader()
        for name, version in self._versions.items():
            reader.offer(name, version)
        self._readers.add(reader)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="page")
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            if not self._readers and self._task is not None:
                self._task.cancel()
                self._task, self._versions = None, {}

    def stop(self) -> None:
        """End all readers."""
        for reader in self._readers:
            reader.end()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            for name, document in self._made().items():
                version = orjson.dumps(document)
                if self._versions.get(name) != version:
                    self._versions[name] = version
                    for reader in self._readers:
                        reader.offer(name, version)
            await asyncio.sleep(GAP_S)
            try:
                async with asyncio.timeout(BEAT_S - GAP_S):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _made(self) -> Mapping[str, Any]:
        """The documents, or one that tells why they could not be made: the page goes on, and so does this agent."""
        try:
            return {"fault": None, **self._compose()}
        except EdgepartError as error:
            return {"fault": str(error)}
        except Exception as error:
            log.exception("the page's documents could not be made")
            return {"fault": f"this agent failed inside ({type(error).__name__}); its log says where"}
