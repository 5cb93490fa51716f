"""Own state: what this device tells other devices of itself. Facts and rules, without I/O.

A device has an incarnation, which grows with each start. Members that believe it dead are refuted with a larger
one. What only later releases know is told to members that understand it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from edgepart.agent.cluster.membership.peer import Peer
from edgepart.agent.cluster.state.events import Member, MemberDistrusted, PersistIncarnation, SendMessage
from edgepart.agent.wire.control import (
    ALIVE,
    DEAD,
    DOORS,
    LEAVES,
    LEAVING,
    LEFT,
    STARVES,
    Doors,
    Goodbye,
    Hello,
    Leaving,
    Sighting,
    Starved,
)
from edgepart.agent.wire.versions import understands

MAX_INCARNATION_LEAP = 1 << 20
"""The most starts and refutations that this device may have forgotten, because its state was restored from an
old copy. A member that tells of more is not believed."""


@dataclass(frozen=True, slots=True)
class OwnFacts:
    """This device as its Hello describes it."""

    node: str
    name: str
    boot: str
    incarnation: int
    """It is larger than at any earlier start; the driver writes it to disk."""
    listen: tuple[str, ...] = ()
    http: str = ""
    version: str = ""
    grpc: str | None = None
    """As in Member."""


class OwnState:
    """This device as it tells others of itself."""

    def __init__(self, facts: OwnFacts) -> None:
        self.facts = facts
        self.starved = Starved()
        """Whether this device is starved of the CPU."""
        self.leaving = False
        """Whether this device is about to leave."""

    def row(self, name: str) -> Member:
        """This device as a member with that unique name."""
        me, status = self.facts, LEAVING if self.leaving else ALIVE
        return Member(me.node, name, me.boot, status, me.listen, me.http, me.version, grpc=me.grpc)

    def sighting(self) -> Sighting:
        """This device as its own views show it."""
        me = self.facts
        return Sighting(me.node, me.incarnation, ALIVE, me.name, me.listen)

    def hello(self, *, reply: bool) -> Hello:
        me = self.facts
        return Hello(me.node, me.name, me.boot, me.incarnation, me.listen, me.http, me.version, reply)

    def tell_starved(self, peers: Iterable[Peer]) -> Iterator[SendMessage]:
        """Tell these devices whether this one is starved."""
        return _tell(peers, STARVES, self.starved)

    def tell_doors(self, peers: Iterable[Peer]) -> Iterator[SendMessage]:
        """Tell these devices where clients reach this one, once that is known."""
        if self.facts.grpc is not None:
            yield from _tell(peers, DOORS, Doors(self.facts.boot, self.facts.grpc))

    def tell_leaving(self, peers: Iterable[Peer]) -> Iterator[SendMessage]:
        """Tell these devices that this one is about to leave."""
        return _tell(peers, LEAVES, Leaving(self.facts.boot))

    def introduce(self, peer: Peer) -> Iterator[SendMessage]:
        """Tell a newcomer what Hello and heartbeats do not say."""
        if self.starved.share:
            yield from self.tell_starved([peer])
        yield from self.tell_doors([peer])
        if self.leaving:
            yield from self.tell_leaving([peer])

    def say_goodbye(self, peers: Iterable[Peer]) -> list[SendMessage]:
        """Tell these devices that this one leaves now."""
        return [SendMessage(peer.node, Goodbye(self.facts.incarnation)) for peer in peers]

    def hear(self, sender: str, said: Sighting) -> MemberDistrusted | PersistIncarnation | None:
        """Take what a member says of this device. If it believes this device dead, or knows a later incarnation,
        it is refuted: the incarnation is larger from now on."""
        mine = self.facts.incarnation
        if said.incarnation > mine + MAX_INCARNATION_LEAP:
            told = f"incarnation {said.incarnation} of this device, which is at {mine}"
            return MemberDistrusted(sender, f"it reports {told}")
        if said.incarnation > mine or (said.status in (DEAD, LEFT) and said.incarnation == mine):
            self.facts = replace(self.facts, incarnation=said.incarnation + 1)
            return PersistIncarnation(self.facts.incarnation)
        return None


def _tell(peers: Iterable[Peer], feature: str, message: Starved | Doors | Leaving) -> Iterator[SendMessage]:
    """Tell it to those of the devices that understand the feature."""
    able = (peer.node for peer in peers if understands(peer.hello.version, feature))
    return (SendMessage(node, message) for node in able)
