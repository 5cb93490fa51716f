"""Frames out of a stream, for tests: agents read each frame from a socket."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.agent.wire.frames import (
    MEMBER,
    PREFIX,
    Buffer,
    Frame,
    FrameLimits,
    parse_frame,
    parse_prefix,
)
from edgepart.planner.errors import FrameError


class Decoder:
    """Frames out of a stream of bytes that comes in any pieces; holds at most one frame and a piece."""

    def __init__(self, limits: FrameLimits = MEMBER) -> None:
        self._limits = limits
        self._held = bytearray()
        self._sizes: tuple[int, int] | None = None
        self._broken: FrameError | None = None

    def feed(self, data: Buffer) -> list[Frame]:
        """The frames that these bytes complete. After a FrameError every further call raises it again."""
        if self._broken is not None:
            raise self._broken
        self._held += data
        try:
            return list(self._complete())
        except FrameError as error:
            self._broken = error
            self._held.clear()
            raise

    def _complete(self) -> Iterator[Frame]:
        while True:
            if self._sizes is None:
                if len(self._held) < PREFIX.size:
                    return
                self._sizes = parse_prefix(bytes(self._held[: PREFIX.size]), self._limits)
            header_bytes, payload_bytes = self._sizes
            start = PREFIX.size + header_bytes
            stop = start + payload_bytes
            if len(self._held) < stop:
                return
            header, payload = bytes(self._held[PREFIX.size : start]), bytes(self._held[start:stop])
            del self._held[:stop]
            self._sizes = None
            yield parse_frame(header, memoryview(payload) if payload else None)
