"""Feeding: sends the frames of a source to a deployment, in the order and number that the line says. Door: the event loop
and its clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from edgepart.cli.feed.answers import AnswerWriter, answer_record, failure_record, line_of
from edgepart.cli.feed.contents import FrameReader
from edgepart.cli.feed.frames import Array, FeedFrame, FrameLine, LossTeller
from edgepart.planner.errors import EdgepartError, NotAuthorised, NotInstalled, UnknownDeployment

if TYPE_CHECKING:
    from edgepart.client.async_client import AsyncClient

Source = (
    AsyncGenerator[tuple[str, Path], None]
    | AsyncGenerator[tuple[str, bytes], None]
    | AsyncGenerator[tuple[str, Array], None]
)
"""Names and contents of frames."""
LEFT_S = 5.0
"""Seconds that requests under way may take once the feed was told to stop."""
HOPELESS = (UnknownDeployment, NotAuthorised, NotInstalled)
"""Errors that every later frame would meet, too: they end the feed."""


class Feeder:
    """Feeds one deployment from one source."""

    def __init__(
        self,
        client: AsyncClient,
        name: str,
        reader: FrameReader,
        line: FrameLine,
        writer: AnswerWriter,
        tell: Callable[[str], None],
        timeout_s: float,
    ) -> None:
        """`name` is the deployment's, and `tell` is told now and then what was lost."""
        self._client = client
        self._name = name
        self._reader = reader
        self._line = line
        self._writer = writer
        self._tell = tell
        self._timeout_s = timeout_s
        self._losses = LossTeller()
        self._now = asyncio.get_running_loop().time
        self._changed = asyncio.Event()
        """A frame came, a request ended, or the feed was told to stop."""
        self._stopping = False
        self._requests: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """No frame is sent any more. `run` returns when the requests under way have ended, or LEFT_S seconds later."""
        self._stopping = True
        self._changed.set()

    async def run(self, source: Source) -> None:
        """Sends the source's frames until it ends, or `stop` is called. Raises what the source raises, and errors that all
        later frames would meet as well."""
        taking = asyncio.create_task(self._take(source))
        try:
            while not self._stopping and not (taking.done() and self._line.is_idle):
                self._changed.clear()
                self._send()
                self._collect()
                await self._changed.wait()
            self._line.drop_waiting()
            if self._requests:
                await asyncio.wait(self._requests, timeout=LEFT_S)
            self._collect()
            if taking.done():
                taking.result()
        finally:
            for task in (taking, *self._requests):
                task.cancel()
            await asyncio.gather(taking, *self._requests, return_exceptions=True)
            for number in list(self._line.under_way):
                self._line.end(number, answered=False)

    async def _take(self, source: Source) -> None:
        try:
            number = 0
            async with aclosing(source):
                async for place, content in source:
                    number += 1
                    self._line.arrive(FeedFrame(number, place, content, self._now()))
                    self._changed.set()
        finally:
            self._changed.set()

    def _send(self) -> None:
        while (frame := self._line.next(self._now())) is not None:
            task = asyncio.create_task(self._ask(frame))
            task.add_done_callback(lambda _: self._changed.set())
            self._requests.add(task)
        if (text := self._losses.due(self._line.counts, self._now())) is not None:
            self._tell(text)

    def _collect(self) -> None:
        """Forgets requests that have ended, and raises the error of one that ended with an error of its own."""
        done = {task for task in self._requests if task.done()}
        self._requests -= done
        for task in done:
            task.result()

    async def _ask(self, frame: FeedFrame) -> None:
        try:
            inputs = await asyncio.to_thread(self._reader.inputs, frame)
            answer = await self._client.infer(self._name, inputs, None, self._timeout_s)
        except EdgepartError as error:
            self._line.end(frame.number, answered=False)
            self._writer.put(
                failure_record(frame, error, self._line.counts),
                f"{frame.number}  {frame.source}  error: {error}",
            )
            if isinstance(error, HOPELESS):
                raise
            return
        age_s = self._now() - frame.came_s
        self._line.end(frame.number, answered=True)
        self._writer.put(
            answer_record(frame, answer, age_s, self._line.counts), line_of(frame, answer, age_s)
        )
