"""Progress of a deployment: takes it from any thread to the lines of one HTTP answer. Door: an asyncio queue,
no socket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any


class ProgressLines:
    """A stream of documents. A newer figure of a stage replaces an older one that nobody has read yet."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()
        self._ended = False

    def report(self, stage: str, done: float, total: float) -> None:
        """Add a stage's figures; any thread may call this."""
        self._loop.call_soon_threadsafe(self._add, {"stage": stage, "done": done, "total": total})

    def end(self, last: dict[str, Any]) -> None:
        """End the stream with the document `last`; only the event loop may call this."""
        # The loop's queue puts it after what threads have reported before.
        self._loop.call_soon(self._finish, last)

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the documents as they come, and {"alive": true} if none has come for `heartbeat_s`, so that a
        client can tell a slow deployment from a dead agent."""
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._news.wait()
            except TimeoutError:
                yield {"alive": True}
                continue
            self._news.clear()
            while self._waiting:
                yield self._waiting.popleft()
            if self._ended:
                return

    def _add(self, document: dict[str, Any]) -> None:
        if self._waiting and self._waiting[-1].get("stage") == document.get("stage"):
            self._waiting.pop()
        self._waiting.append(document)
        self._news.set()

    def _finish(self, last: dict[str, Any]) -> None:
        self._waiting.append(last)
        self._ended = True
        self._news.set()
