"""The peer table: the devices that this one knows, and which of them are members. Rules; time is an argument.

The table is asked much more often than it changes, so each answer is kept until `touch` says that it is outdated.
"""

from __future__ import annotations

import math

from edgepart.agent.cluster.membership.flapping import LossHistory
from edgepart.agent.cluster.membership.own_state import OwnState
from edgepart.agent.cluster.membership.peer import Peer
from edgepart.agent.cluster.membership.roster import Roster
from edgepart.agent.cluster.state.events import Member
from edgepart.agent.wire.control import ALIVE, FLAPPING, SUSPECT, Sighting


class PeerTable:
    """The devices that one device knows, itself included."""

    def __init__(self, own: OwnState, flapping: LossHistory, now: float) -> None:
        self.by_node: dict[str, Peer] = {}
        """The other devices, whatever their status, by node."""
        self._own = own
        self._flapping = flapping
        self._shown_at = now
        """The time for which quarantines are shown."""
        self._roster = Roster()
        self._members: tuple[Member, ...] | None = None
        self._alive: list[str] | None = None
        self._alive_nodes: frozenset[str] | None = None
        self.touch()

    def touch(self, *peers: Peer) -> None:
        """Note that something changed in these devices, or in this one, that views or `members()` show."""
        me = self._own.facts
        self._roster.touch(me.node, me.name)
        for peer in peers:
            self._roster.touch(peer.node, peer.hello.name if peer.status in (ALIVE, SUSPECT) else None)
        self._members = self._alive = self._alive_nodes = None

    def members(self) -> tuple[Member, ...]:
        """The members, this device included, sorted by node id. Suspects stay members until the suspicion is
        settled."""
        if self._members is None:
            self._members = self._roster.members(self._row)
        return self._members

    def _row(self, node: str, name: str) -> Member:
        if node == self._own.facts.node:
            return self._own.row(name)
        peer = self.by_node[node]
        status, note = peer.standing, ""
        if status == ALIVE and self._flapping and (note := self._flapping.why(node, self._shown_at)):
            status = FLAPPING
        return peer.row(name, status, note)

    def alive(self) -> list[str]:
        """The other members that are heard and can be sent to, sorted. The caller must not change the
        list."""
        if self._alive is None:
            self._alive = sorted(node for node, peer in self.by_node.items() if peer.status == ALIVE)
        return self._alive

    def alive_nodes(self) -> frozenset[str]:
        """The nodes of `alive`."""
        if self._alive_nodes is None:
            self._alive_nodes = frozenset(self.alive())
        return self._alive_nodes

    def alive_peers(self) -> list[Peer]:
        """The devices of `alive`."""
        return [self.by_node[node] for node in self.alive()]

    def sightings(self) -> tuple[Sighting, ...]:
        """What this device sees now: itself, and then the others by node id."""
        others = [peer.sighting() for _, peer in sorted(self.by_node.items()) if peer.status]
        return (self._own.sighting(), *others)

    def wake_at(self) -> float:
        """The end of the next quarantine; inf if there is none."""
        return self._flapping.wake_at(self._shown_at) if self._flapping else math.inf

    def wake(self, now: float) -> None:
        """Show flapping members whose quarantine has ended as alive again."""
        if self.wake_at() <= now:
            self.touch(*(self.by_node[m.node] for m in self.members() if m.status == FLAPPING))
        self._shown_at = now
