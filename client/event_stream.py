"""Event stream: reads server-sent events whose data are JSON documents. Rules: no door."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from edgepart.planner.errors import FrameError, Unavailable

END = b"[DONE]"
"""The data of the last event of a text."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of a stream."""

    kind: str
    data: bytes
    identity: str = ""
    """The event's place in its log; "" if it has none."""

    def document(self) -> Any:
        """What the data say. Raises FrameError if they are no JSON."""
        try:
            return json.loads(self.data)
        except ValueError as error:
            raise FrameError(
                f"the agent sent data that are no JSON ({error}); is it an edgepart agent?"
            ) from None


async def split_events(lines: AsyncIterable[bytes]) -> AsyncGenerator[StreamEvent, None]:
    """Yields the events in these lines. Comments, and an event whose end has not come, are left out."""
    kind, identity, data = "message", "", b""
    async for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            kind = value.decode(errors="replace")
        elif name == b"id":
            identity = value.decode(errors="replace")
        elif name == b"data":
            data += value
        elif not line.strip():
            if data:
                yield StreamEvent(kind, data, identity)
            kind, identity, data = "message", "", b""


async def read_events(lines: AsyncIterable[bytes]) -> AsyncGenerator[dict[str, Any], None]:
    """Yields the documents until the end of the stream is announced, or a document tells an error.

    Raises Unavailable if the stream ends before, and FrameError for data that are no document."""
    async with aclosing(split_events(lines)) as events:
        async for event in events:
            if event.data.strip() == END:
                return
            document = event.document()
            if not isinstance(document, dict):
                raise FrameError(f"the agent sent a {type(document).__name__} where a document was expected")
            yield document
            if "error" in document:
                return
    raise Unavailable("the agent ended its answer early; ask again")
