"""Progress of a deployment: what a standing has to say that is new, and its way from any thread to the lines of one HTTP
answer. Door: an asyncio queue, no socket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from edgepart.agent.api.stages import WEIGHTS_ON, Progress
from edgepart.agent.wire.control import DeviceWeights

STILL_S = 5.0
"""The interval at which a user who deploys is told again what is being done, and for how long."""


class StandingProgress:
    """What a user who deploys was told of the leader's work. The clock is given."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._text = ""
        self._since = self._told_at = 0.0
        self._weights: dict[str, DeviceWeights] = {}

    def tell(self, text: str, weights: Sequence[DeviceWeights], now: float) -> None:
        """Tell the state if it is new, or was told STILL_S ago, and the weights of each device where they have changed."""
        if text != self._text:
            self._text, self._since, self._told_at = text, now, now
            self._progress(text, 0, 0)
        elif now - self._told_at >= STILL_S:
            self._told_at = now
            self._progress(f"{text} ({now - self._since:.0f} s so far)", 0, 0)
        for one in weights:
            if self._weights.get(one.device) != one:
                self._weights[one.device] = one
                self._progress(WEIGHTS_ON + one.device, one.here_bytes, one.needed_bytes)


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
        self._waiting = deque(one for one in self._waiting if one.get("stage") != document["stage"])
        self._waiting.append(document)
        self._news.set()

    def _finish(self, last: dict[str, Any]) -> None:
        self._waiting.append(last)
        self._ended = True
        self._news.set()
