"""Buffers: an HTTP body made of several pieces of memory, written one by one without being put together. Door: aiohttp's
writers.

For both ends: the gateway's answers and the client's requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import Payload
from aiohttp.abc import AbstractStreamWriter

ALIGN_BYTES = 64
"""Binary data begins at a multiple of it: arrays are then views on what came, whatever their type."""

Buffer = bytes | bytearray | memoryview
"""Memoryviews are of bytes."""


class Buffers(Payload):
    """May be written several times, as a request that is tried again is."""

    _autoclose = True

    def __init__(self, buffers: Sequence[Buffer], content_type: str) -> None:
        super().__init__(buffers, content_type=content_type)
        self._buffers = buffers
        self._size = sum(map(len, buffers))

    async def write(self, writer: AbstractStreamWriter) -> None:
        """The first piece goes out with the HTTP head, so a small one should be first: that one is copied."""
        for buffer in self._buffers:
            await writer.write(buffer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._buffers).decode(encoding, errors)


def padded(head: bytes) -> bytes:
    """JSON, with spaces after it up to a multiple of `ALIGN_BYTES`.

    >>> len(padded(b"{}")), padded(b"{}").strip()
    (64, b'{}')
    """
    return head + b" " * (-len(head) % ALIGN_BYTES)
