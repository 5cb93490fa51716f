"""Event stream: reads server-sent events whose data are JSON documents. Rules: no door."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from edgepart.planner.errors import FrameError, Unavailable

END = "[DONE]"
"""The data of the last event."""


async def read_events(lines: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Yields the documents until the end of the stream is announced, or a document tells an error. Comments are skipped.

    Raises Unavailable if the stream ends before, and FrameError for data that are no document."""
    async for line in lines:
        field, _, value = line.strip().partition(b":")
        if field != b"data":
            continue
        if value.strip() == END.encode():
            return
        document = _document(value)
        yield document
        if "error" in document:
            return
    raise Unavailable("the agent ended its answer early; ask again")


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise FrameError(
            f"the agent sent data that are no JSON ({error}); is it an edgepart agent?"
        ) from None
    if not isinstance(document, dict):
        raise FrameError(f"the agent sent a {type(document).__name__} where a document was expected")
    return document
