"""Server-sent events are read as documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgepart.client.event_stream import read_events
from edgepart.planner.errors import FrameError, Unavailable


async def lines(data: bytes) -> AsyncIterator[bytes]:
    for line in data.splitlines(keepends=True):
        yield line


def read(data: bytes) -> list[dict[str, Any]]:
    async def story() -> list[dict[str, Any]]:
        return [document async for document in read_events(lines(data))]

    return asyncio.run(story())


def test_events_are_read_until_their_end() -> None:
    assert read(b': waiting\n\ndata: {"a": 1}\r\n\r\ndata:{"b": 2}\n\ndata: [DONE]\n\ndata: x') == [
        {"a": 1},
        {"b": 2},
    ]
    assert read(b'data: {"error": {}}\n\n') == [{"error": {}}]
    with pytest.raises(Unavailable, match="early"):
        read(b'data: {"a": 1}\n\n')
    for damaged in (b"data: {\n\n", b"data: [1]\n\n"):
        with pytest.raises(FrameError):
            read(damaged)
