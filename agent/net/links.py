"""Link: two channels in each direction between this agent and one other. Facts and rules, no thread.

A connection carries frames one way only, because a TLS connection must not be read and written by two threads
at once. A link is up once this agent has an outgoing and an incoming connection for each channel. When any of the
four ends, the whole link is down.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from edgepart.agent.net.incoming import IncomingConnection
from edgepart.agent.net.stream import Stream
from edgepart.agent.net.writer import Writer
from edgepart.agent.security.charter import Charter
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.codec import kinds

CONTROL, DATA = "control", "data"
CHANNELS = (CONTROL, DATA)


@dataclass(frozen=True, slots=True)
class LinkOpen:
    """The first frame on a connection, sent by the agent that dialled: the purpose of the connection."""

    channel: str
    boot: str
    """Random for each start of the dialling agent, so that a restarted peer can be recognised."""
    attempt: int
    """The number of the dialler's attempt. Both channels of a link have the same number; a higher number replaces the
    link."""
    expected: str
    """The node id in the certificate that the dialler saw."""
    listen: tuple[Address, ...]
    """The addresses to dial back. The host "" stands for the address that this connection comes from."""


@dataclass(frozen=True, slots=True)
class LinkAccepted:
    """The only frame that is sent back on a connection, unless a Charter that revokes the dialling node takes its
    place."""

    boot: str


@dataclass(frozen=True, slots=True)
class LinkRefused:
    why: str


LINK_KINDS = kinds(LinkOpen, LinkAccepted, LinkRefused, Charter)


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """What went over the links with one other agent, on all channels, in bytes of frames: without TLS and TCP."""

    sent_bytes: int = 0
    received_bytes: int = 0

    def __add__(self, other: LinkTraffic) -> LinkTraffic:
        return LinkTraffic(self.sent_bytes + other.sent_bytes, self.received_bytes + other.received_bytes)


@dataclass(eq=False)
class PeerLink:
    """The state of a link. The transport's lock guards it."""

    node_id: str
    boot: str
    """The boot of the other side."""
    out: dict[str, Writer] = field(default_factory=dict)
    into: dict[str, Stream] = field(default_factory=dict)
    readers: dict[str, IncomingConnection] = field(default_factory=dict)
    """What reads the connections in `into`, once the link is announced."""
    attempt_in: int = -1
    """The other side's attempt that `into` belongs to."""
    via: str = ""
    """The address that this agent dialled, empty if it only dialled back."""
    over: str | None = None
    """The reason why the link ended; None while it has not ended."""
    announced: threading.Event = field(default_factory=threading.Event)
    """Set when on_link has reported the link as up, or when the link is over. Frames wait for it."""

    @property
    def complete(self) -> bool:
        return self.over is None and len(self.out) == len(self.into) == len(CHANNELS)

    @property
    def traffic(self) -> LinkTraffic:
        """What went over this link so far."""
        return LinkTraffic(
            sum(writer.sent_bytes for writer in self.out.values()),
            sum(stream.received_bytes for stream in self.into.values()),
        )

    def is_replaced_by(self, boot: str, attempt: int) -> bool:
        """Whether an incoming connection of that boot and attempt belongs to a newer link than this one."""
        return boot != self.boot or (self.attempt_in >= 0 and attempt > self.attempt_in)

    def awaits(self, channel: str, boot: str, attempt: int) -> bool:
        """Whether that incoming connection is the next channel of this link's attempt. Control comes first."""
        mine = (boot, attempt) == (self.boot, self.attempt_in)
        return mine and CONTROL in self.into and channel not in self.into
