"""Heartbeats: what this device says in them, and when they are due. Rules; time is an argument.

A heartbeat says that its sender is there, and whom it follows. Most heartbeats say the same as the one before, so
the messages are made anew only when their contents or their receivers have changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgepart.agent.cluster.membership.own_state import OwnState
from edgepart.agent.cluster.membership.peer import Peer
from edgepart.agent.cluster.state.events import SendMessage
from edgepart.agent.wire.control import ALIVE, SUSPECT, Heartbeat

Claim = tuple[str, int, int]
"""The leader, its term, and the largest term seen."""


class Heartbeats:
    """The heartbeats that one device sends."""

    def __init__(self, own: OwnState, peers: Mapping[str, Peer], every_s: float, now: float) -> None:
        self._own = own
        self._peers = peers
        self._every_s = every_s
        self.due_at = now
        """The time when heartbeats are sent next."""
        self._claim: Claim = ("", 0, 0)
        self._last: tuple[tuple[int, Claim], Heartbeat] | None = None
        """What the last heartbeat says, and that heartbeat."""
        self._messages: list[SendMessage] | None = None
        """One heartbeat to each linked member; None if they have to be made anew."""

    def announce(self, leader: str, term: int, seen_term: int, now: float) -> bool:
        """Set what heartbeats say about the leader. If that is news, they are due at once. Returns whether it
        is."""
        if self._claim == (leader, term, seen_term):
            return False
        self._claim, self.due_at = (leader, term, seen_term), now
        return True

    def hurry(self, now: float) -> None:
        """Note that this device has news which heartbeats tell: its incarnation."""
        self.due_at = now

    def outdated(self) -> None:
        """Note that the receivers may have changed: the members, or their links."""
        self._messages = None

    def newest(self) -> Heartbeat:
        """The heartbeat to send; the same object as long as its contents stay the same."""
        facts = self._own.facts
        saying = (facts.incarnation, self._claim)
        if self._last is None or self._last[0] != saying:
            leader, term, seen = self._claim
            self._last = (saying, Heartbeat(facts.boot, facts.incarnation, seen, leader, term))
        return self._last[1]

    def send(self, now: float) -> list[SendMessage]:
        """One heartbeat to each linked member. The caller must not change the list."""
        self.due_at = now + self._every_s
        beat = self.newest()
        if self._messages is None or (self._messages and self._messages[0].message is not beat):
            told = (ALIVE, SUSPECT)
            self._messages = [
                SendMessage(n, beat) for n, p in self._peers.items() if p.linked and p.status in told
            ]
        return self._messages
