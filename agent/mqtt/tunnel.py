"""Tunnel: one stream of bytes in both directions, as messages through a broker. Rules: no socket, no clock, no thread.

What travels is the TLS of an ordinary connection, so nothing here protects anything; it is enough that what the broker
loses, doubles or changes the order of ends the stream. (Brokers do lose messages: of a reader that is too slow, and of a
connection that breaks.) Each side may send so many messages as the other one has granted, so that the broker never has to
keep more of a stream than that; a message is granted again once whoever reads the stream has taken it.

All streams to an agent wait in one line at the broker, heartbeats with them. So a stream is granted what is read of it in
`AHEAD_S`, as it was read lately: then the line is about that long, however many streams there are.

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
"""Longer suits a far broker; shorter keeps heartbeats from waiting."""
LEAST = 2
"""Messages granted of a stream that nobody knows the speed of: one is read while the next one comes."""
MOST_WHY_BYTES = 300


class PacketKind(IntEnum):
    HELLO = 1
    """`number`: the grant; the body: version and endpoint of who opens."""
    WELCOME = 2
    """`number`: the grant."""
    DATA = 3
    """`number`: how many came before; the body: bytes of the stream."""
    CREDIT = 4
    """`number`: how many messages of data may be sent in all."""
    END = 5
    """`number`: how many messages of data there were; no more come."""
    RESET = 6
    """The stream is over, both ways; the body says why. What came before it counts."""
    COUNT = 7
    """`number`: how many messages of data were sent so far; shows the loss of a last one, and is answered with CREDIT,
    for that one may have been lost."""


@dataclass(frozen=True, slots=True)
class Packet:
    kind: PacketKind
    number: int = 0
    body: bytes | memoryview = b""

    def encode(self) -> bytes:
        return HEADER.pack(self.kind, self.number) + self.body


def decode(payload: bytes) -> Packet:
    """FrameError for what is none."""
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
    """What a RESET says, for people; others wrote it."""
    text = bytes(message.body[:MOST_WHY_BYTES]).decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text) or "the other side ended it"


class Tunnel:
    """One side of a stream. It says what may be sent, and what came; it is over when anything is wrong."""

    def __init__(self, window: int) -> None:
        """`window`: messages that the other side may have on the way to us, at most."""
        self._window = window
        self._granted = min(LEAST, window)
        self._may_send = 0
        self._sent = 0
        self._came = 0
        self._used = 0
        self._used_then = 0
        self._granted_at = -math.inf
        """When more was granted last; `_used_then` had been used."""
        self._told = 0
        self.opened = False
        """Whether the other side has granted anything yet."""
        self.ended_out = False
        self.ended_in = False

    # What goes out

    @property
    def grant(self) -> int:
        """The number of messages that this side grants, for HELLO and WELCOME, and to say again."""
        return self._granted

    @property
    def has_room(self) -> bool:
        return self._sent < self._may_send and not self.ended_out

    def data(self, body: bytes) -> Packet:
        """Only where there is room."""
        message = Packet(PacketKind.DATA, self._sent, body)
        self._sent += 1
        return message

    def count(self) -> Packet | None:
        """To send when nothing has been sent for a while; None where the other side knows already."""
        if self.ended_out or self._told == self._sent:
            return None
        self._told = self._sent
        return Packet(PacketKind.COUNT, self._sent)

    def end(self) -> Packet:
        self.ended_out = True
        return Packet(PacketKind.END, self._sent)

    def note_read(self, now: float) -> Packet | None:
        """The stream's reader has taken a message's bytes; the CREDIT to send, where it is time for one."""
        self._used += 1
        ahead = self._ahead(now)
        if self.ended_in or self._granted - self._used > ahead // 2:
            return None
        self._granted_at, self._used_then = now, self._used
        self._granted = max(self._granted, self._used + ahead)
        return Packet(PacketKind.CREDIT, self._granted)

    def _ahead(self, now: float) -> int:
        """How many messages may be on the way."""
        seconds = now - self._granted_at
        lately = self._used - self._used_then
        ahead = lately * AHEAD_S / seconds if seconds > 0 else math.inf
        return min(self._window, max(LEAST, math.ceil(min(ahead, self._window))))

    # What comes in

    def open(self, grant: int) -> None:
        """The other side's HELLO or WELCOME came."""
        self.opened = True
        self._may_send = grant

    def take(self, message: Packet) -> bytes | memoryview:
        """Bytes of the stream in a message of an open one (RESET and HELLO are the caller's). FrameError ends it."""
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
