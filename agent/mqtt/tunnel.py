"""Tunnel: one stream of bytes in both directions, as messages through a broker. Rules: no socket, no clock, no thread.

The stream carries the TLS of an ordinary connection, so this module protects nothing. It only has to end the stream if the
broker loses, duplicates or reorders messages. (Brokers do lose messages: if a reader is too slow, and if a connection
breaks.) Each side may send as many messages as the other side has granted, so that the broker never has to keep more of a
stream than that. A message is granted again once the stream's reader has taken it.

All streams to an agent, and its heartbeats, wait in one queue at the broker. Therefore a stream is granted the number of
messages that its reader takes in `AHEAD_S` at its recent rate: the queue is then about that long, however many streams
there are.

    opener                                    other side
    HELLO(grant, who)                 ->
                                      <-      WELCOME(grant)                  or RESET(why)
    DATA(0, bytes), DATA(1, bytes)    ->
                                      <-      CREDIT(grant)
    END(2)                            ->
                                      <-      RESET(why)
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum

from edgepart.planner.errors import FrameError

HEADER = struct.Struct("!BQ")
AHEAD_S = 0.15
"""Seconds of reading that are granted ahead. A longer time suits a far broker; a shorter one keeps heartbeats from
waiting."""
LEAST = 2
"""The fewest messages to grant, also for a stream of unknown speed: one is read while the next one arrives."""
MOST_WHY_BYTES = 300


class PacketKind(IntEnum):
    HELLO = 1
    """`number`: the grant; the body: version and endpoint of the opener."""
    WELCOME = 2
    """`number`: the grant."""
    DATA = 3
    """`number`: how many messages of data were sent before; the body: bytes of the stream."""
    CREDIT = 4
    """`number`: how many messages of data may be sent in all."""
    END = 5
    """`number`: how many messages of data were sent in all; no more follow."""
    RESET = 6
    """The stream is over in both directions; the body says why. Data that arrived before it remains valid."""
    COUNT = 7
    """`number`: how many messages of data were sent so far. It reveals the loss of the last message, and is answered with
    CREDIT, because the last CREDIT may have been lost too."""


@dataclass(frozen=True, slots=True)
class Packet:
    kind: PacketKind
    number: int = 0
    body: bytes | memoryview = b""

    def encode(self) -> bytes:
        return HEADER.pack(self.kind, self.number) + self.body


def decode(payload: bytes) -> Packet:
    """Return the packet in a message. Raises FrameError if the message holds none."""
    if len(payload) < HEADER.size:
        raise FrameError(f"a message of {len(payload)} bytes is no part of a stream")
    kind, number = HEADER.unpack_from(payload)
    try:
        return Packet(PacketKind(kind), number, memoryview(payload)[HEADER.size :])
    except ValueError:
        raise FrameError(f"{kind} is no kind of a stream's messages") from None


def reset(why: str) -> Packet:
    return Packet(PacketKind.RESET, 0, why.encode()[:MOST_WHY_BYTES])


def reason(message: Packet) -> str:
    """The reason in a RESET, for people, with unprintable characters replaced because another agent wrote it."""
    text = bytes(message.body[:MOST_WHY_BYTES]).decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text) or "the other side ended it"


class Tunnel:
    """One side of a stream: decides what may be sent, and checks what arrives. Any error ends the stream."""

    def __init__(self, window: int) -> None:
        """Set up one side. `window` is the most messages that the other side may have on the way to this one."""
        self._window = window
        self._granted = min(LEAST, window)
        self._may_send = 0
        self._sent = 0
        self._came = 0
        self._used = 0
        self._used_then = 0
        self._granted_at = -math.inf
        """The time of the last grant; `_used_then` messages had been read by then."""
        self._told = 0
        self.opened = False
        """Whether the other side has granted anything yet."""
        self.ended_out = False
        self.ended_in = False

    # What goes out

    @property
    def grant(self) -> int:
        """The number of messages that this side has granted in all, for HELLO, WELCOME and repeated CREDITs."""
        return self._granted

    @property
    def has_room(self) -> bool:
        return self._sent < self._may_send and not self.ended_out

    def data(self, body: bytes) -> Packet:
        """Return the next message of data. Call this only if `has_room`."""
        message = Packet(PacketKind.DATA, self._sent, body)
        self._sent += 1
        return message

    def count(self) -> Packet | None:
        """Return the COUNT to send when nothing has been sent for a while; None if the other side knows the count."""
        if self.ended_out or self._told == self._sent:
            return None
        self._told = self._sent
        return Packet(PacketKind.COUNT, self._sent)

    def end(self) -> Packet:
        self.ended_out = True
        return Packet(PacketKind.END, self._sent)

    def note_read(self, now: float) -> Packet | None:
        """Note that the stream's reader has taken a message's bytes. Return the CREDIT to send, if one is due."""
        self._used += 1
        ahead = self._ahead(now)
        if self.ended_in or self._granted - self._used > ahead // 2:
            return None
        self._granted_at, self._used_then = now, self._used
        self._granted = max(self._granted, self._used + ahead)
        return Packet(PacketKind.CREDIT, self._granted)

    def _ahead(self, now: float) -> int:
        """The number of messages that may be on the way, by the rate at which they were read lately."""
        seconds = now - self._granted_at
        lately = self._used - self._used_then
        ahead = lately * AHEAD_S / seconds if seconds > 0 else math.inf
        return min(self._window, max(LEAST, math.ceil(min(ahead, self._window))))

    # What comes in

    def open(self, grant: int) -> None:
        """Note that the other side's HELLO or WELCOME arrived, with its grant."""
        self.opened = True
        self._may_send = grant

    def take(self, message: Packet) -> bytes | memoryview:
        """Return the stream's bytes in a message of an open stream (the caller handles RESET and HELLO). Raises
        FrameError, which ends the stream, for a message that is out of order or was not granted."""
        match message.kind:
            case PacketKind.DATA:
                self._check_next(message.number)
                if self._came == self._granted:
                    raise FrameError(f"more than the {self._granted} messages came that were granted")
                self._came += 1
                return message.body
            case PacketKind.END:
                self._check_next(message.number)
                self.ended_in = True
            case PacketKind.COUNT:
                self._check_next(message.number)
            case PacketKind.CREDIT:
                self._may_send = max(self._may_send, message.number)
            case _:
                raise FrameError(f"{message.kind.name} came on an open stream")
        return b""

    def _check_next(self, number: int) -> None:
        if self.ended_in:
            raise FrameError("bytes came after the end")
        if number > self._came:
            raise FrameError(f"the broker lost {number - self._came} messages")
        if number < self._came:
            raise FrameError(f"message {number} came again")
