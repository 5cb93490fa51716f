"""Worker channel: exchanges messages in turns over a local socket, with as little delay as possible. Door: a socket."""

from __future__ import annotations

import socket

_CHUNK_BYTES = 1 << 16
"""A message of up to this many bytes, with its length, takes one system call at either end."""
_LENGTH_BYTES = 4


class Channel:
    """One end of a connection. The two ends send in turns, so that at most one message is under way."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError if the other end is closed."""
        self._end.sendall(len(message).to_bytes(_LENGTH_BYTES, "little") + message)

    def receive(self) -> bytes:
        """Wait for the next message, without a time limit. Raises EOFError or OSError if the other end is closed."""
        found = self._end.recv(_CHUNK_BYTES)
        whole = _LENGTH_BYTES + int.from_bytes(found[:_LENGTH_BYTES], "little")
        if len(found) == whole > _LENGTH_BYTES:
            return found[_LENGTH_BYTES:]
        return self._rest(bytearray(found))

    def _rest(self, found: bytearray) -> bytes:
        while len(found) < _LENGTH_BYTES or len(found) < _LENGTH_BYTES + int.from_bytes(
            found[:_LENGTH_BYTES], "little"
        ):
            more = self._end.recv(_CHUNK_BYTES)
            if not more:
                raise EOFError
            found += more
        return bytes(found[_LENGTH_BYTES:])

    def close(self) -> None:
        self._end.close()
