"""Buffers: an HTTP body of several pieces of memory, which are written one by one and never joined. Door: aiohttp's
writers.

Both the gateway's answers and the client's requests use this class.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import Payload
from aiohttp.abc import AbstractStreamWriter

ALIGN_BYTES = 64
"""Binary data begins at a multiple of this, so that arrays of any type can be views of the bytes that arrived."""

Buffer = bytes | bytearray | memoryview
"""A piece of memory; the items of a memoryview must be bytes."""


class Buffers(Payload):
    """A body that can be written several times, as is needed when a request is tried again."""

    _autoclose = True

    def __init__(self, buffers: Sequence[Buffer], content_type: str) -> None:
        super().__init__(buffers, content_type=content_type)
        self._buffers = buffers
        self._size = sum(map(len, buffers))

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all pieces. The first one is copied to go out with the HTTP head, so it should be small."""
        for buffer in self._buffers:
            await writer.write(buffer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._buffers).decode(encoding, errors)


def pad_head(head: bytes) -> bytes:
    """Return the JSON, followed by spaces up to a multiple of ALIGN_BYTES.

    >>> len(pad_head(b"{}")), pad_head(b"{}").strip()
    (64, b'{}')
    """
    return head + b" " * (-len(head) % ALIGN_BYTES)
