"""Link: what joins this agent to one other: two channels in each direction. Facts and rules, no thread.

A connection carries frames one way only, because a TLS connection must not be read and written by two threads
at once. So a link is up once this agent has a connection out and one in for each channel; when any of the
four ends, the whole link is down.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from edgepart.agent.net.stream import Stream
from edgepart.agent.net.writer import Writer
from edgepart.agent.security.charter import Charter
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.codec import kinds

CONTROL, DATA = "control", "data"
CHANNELS = (CONTROL, DATA)


@dataclass(frozen=True, slots=True)
class LinkOpen:
    """The first frame on a connection, from who dialled: what the connection is for."""

    channel: str
    boot: str
    """Random per start of the dialling agent: tells a restarted peer from the one we knew."""
    attempt: int
    """Counts the dialler's attempts; both channels of one link have the same, and a later one replaces it."""
    expected: str
    """The node id in the certificate that the dialler saw."""
    listen: tuple[Address, ...]
    """The addresses to dial back. The host "" stands for the address that this connection comes from."""


@dataclass(frozen=True, slots=True)
class LinkAccepted:
    """The only frame back on a connection; in its place may be the Charter by which who dialled is revoked."""

    boot: str


@dataclass(frozen=True, slots=True)
class LinkRefused:
    why: str


LINK_KINDS = kinds(LinkOpen, LinkAccepted, LinkRefused, Charter)


@dataclass(eq=False)
class PeerLink:
    """The state of a link; guarded by the transport's lock."""

    node_id: str
    boot: str
    """The other side's."""
    out: dict[str, Writer] = field(default_factory=dict)
    into: dict[str, Stream] = field(default_factory=dict)
    attempt_in: int = -1
    """The other side's attempt that `into` belongs to."""
    via: str = ""
    """The address that we dialled, empty where we only dialled back."""
    over: str | None = None
    """Why it ended."""
    announced: threading.Event = field(default_factory=threading.Event)
    """Set when on_link has been told that it is up, or when it is over: frames wait for that."""

    @property
    def complete(self) -> bool:
        return self.over is None and len(self.out) == len(self.into) == len(CHANNELS)

    def is_replaced_by(self, boot: str, attempt: int) -> bool:
        """Whether a connection in, of that boot and attempt, is of a newer link than this."""
        return boot != self.boot or (self.attempt_in >= 0 and attempt > self.attempt_in)

    def awaits(self, channel: str, boot: str, attempt: int) -> bool:
        """Whether that connection in is the next channel of this link's attempt; control comes first."""
        mine = (boot, attempt) == (self.boot, self.attempt_in)
        return mine and CONTROL in self.into and channel not in self.into
