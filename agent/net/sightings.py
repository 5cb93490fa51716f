"""Sightings: every box that this agent has heard of, and the attempts to reach it. A rule: discovery, transport and
membership report what happens, and the time is an argument (seconds since 1970); diagnosis.py interprets the record.

Anybody on the network can cause most of these entries, so their number is bounded and none is trusted.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from edgepart.agent.net.faults import Fault
from edgepart.agent.wire.address import Address

_SCOPE = re.compile(r"%[^\]]*")

MDNS, BROKER, PEER, SAVED, MEMBERS, CALLED = "mDNS", "broker", "--peer", "saved list", "members", "a call"
"""The ways in which this agent can hear of a box."""
MOST_BOXES = 512
MOST_ADDRESSES = 16
"""The most addresses kept for one box, each with its last try; further announced addresses are ignored."""
MOST_KNOCKS = 32


@dataclass(frozen=True, slots=True)
class Try:
    """The newest attempt to reach a box at one address."""

    address: str
    fault: Fault | None
    """None if the attempt led to a link."""
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Box:
    """Everything that this agent knows about one box."""

    node: str
    """Empty if only an address is known."""
    name: str = ""
    fingerprint: str = ""
    """The fingerprint (16 digits) of the cluster that the box claims to belong to; empty if it claims none."""
    version: str = ""
    addresses: tuple[str, ...] = ()
    """The addresses as they were last announced, or given."""
    heard: tuple[tuple[str, float], ...] = ()
    """The ways in which this agent heard of the box, each with the latest time."""
    tries: tuple[Try, ...] = ()
    """One for each address, newest first."""
    called: tuple[str, float] | None = None
    """The address from which it last connected to this agent with a certificate of this cluster, and when."""
    member_at: float | None = None
    """The last time at which it was known to be a member."""
    ended: tuple[str, float] | None = None
    """The reason why the last link to it ended, and the time."""

    @property
    def heard_at(self) -> float:
        return max((at for _, at in self.heard), default=0.0)


@dataclass(frozen=True, slots=True)
class RefusedConnection:
    """A refused connection: the caller had no certificate and wanted to join, or its certificate was not accepted."""

    address: str
    why: str
    at: float
    times: int = 1


class LinkObserver(Protocol):
    """An observer of attempts to make links. Any thread may call its methods."""

    def tried(self, node: str, address: str, fault: Fault | None, text: str) -> None:
        """The same as Boxes.tried."""

    def called(self, node: str, address: str) -> None:
        """The same as Boxes.called."""

    def knocked(self, address: str, why: str) -> None:
        """The same as Boxes.knocked."""


class Sightings:
    """The record of all boxes. Only one thread may use it."""

    def __init__(self) -> None:
        self._boxes: dict[str, Box] = {}
        """The boxes by node id, or by address if nothing else is known; the box heard of last comes last."""
        self._knocks: deque[RefusedConnection] = deque(maxlen=MOST_KNOCKS)
        self.heard_self_at: float | None = None
        """The last time at which this agent heard its own announcement."""

    def all(self) -> tuple[Box, ...]:
        return tuple(sorted(self._boxes.values(), key=lambda box: (box.name or "~", box.node, box.addresses)))

    def knocks(self) -> tuple[RefusedConnection, ...]:
        """Return the refused connections, newest first."""
        return tuple(reversed(self._knocks))

    def heard(
        self,
        way: str,
        node: str,
        addresses: Iterable[str],
        now: float,
        *,
        name: str = "",
        fingerprint: str = "",
        version: str = "",
    ) -> None:
        """Record that a box was announced or named by somebody. Without a node id each address counts as a box."""
        listed = tuple(addresses)[:MOST_ADDRESSES]
        for key, own in [(node, listed)] if node else [(one, (one,)) for one in listed]:
            box = self._boxes.pop(key, None) or Box(node)
            self._boxes[key] = replace(
                box,
                name=name or box.name,
                fingerprint=fingerprint or box.fingerprint,
                version=version or box.version,
                addresses=own or box.addresses,
                heard=(*((w, at) for w, at in box.heard if w != way), (way, now)),
            )
            self._make_room(key)

    def member(self, node: str, name: str, version: str, addresses: Iterable[str], now: float) -> None:
        """Record that the box is a member."""
        known = self._at(node, node)
        # The name that the box gives itself is kept: members that share a name are reported under longer names.
        self.heard(MEMBERS, node, addresses, now, name=known.name or name, version=version)
        self._boxes[node] = replace(self._boxes[node], member_at=now)

    def tried(self, node: str, address: str, fault: Fault | None, text: str, now: float) -> None:
        """Record that an address was tried. `node` is the node that was expected, or the one that answered."""
        if (given := address) not in self._boxes:
            given = _SCOPE.sub("", address)  # the announced address names no interface
        key = node or given
        if node and (nameless := self._boxes.pop(given, None)) is not None:  # now its node id is known
            named = self._at(node, node)
            self._boxes[node] = replace(
                named,
                heard=(*named.heard, *(one for one in nameless.heard if one not in named.heard)),
                addresses=named.addresses or nameless.addresses,
            )
        if (box := self._boxes.get(key)) is None:
            return
        others = [one for one in box.tries if one.address != address]
        self._boxes[key] = replace(
            box, tries=(Try(address, fault, text[:400], now), *others)[:MOST_ADDRESSES]
        )

    def called(self, node: str, address: str, now: float) -> None:
        """Record that a box connected to this agent and showed a certificate of this cluster."""
        self.heard(CALLED, node, (), now)
        self._boxes[node] = replace(self._boxes[node], called=(address, now))

    def ended(self, node: str, why: str, now: float) -> None:
        """Record that the link to a box is down."""
        if node in self._boxes:
            self._boxes[node] = replace(self._boxes[node], ended=(why[:400], now))

    def knocked(self, address: str, why: str, now: float) -> None:
        """Record that a connection was refused."""
        for place, known in enumerate(self._knocks):
            if (known.address, known.why) == (address, why[:400]):
                del self._knocks[place]
                self._knocks.append(replace(known, at=now, times=known.times + 1))
                return
        self._knocks.append(RefusedConnection(address, why[:400], now))

    def _at(self, key: str, node: str) -> Box:
        return self._boxes.get(key) or Box(node)

    def _make_room(self, kept: str) -> None:
        """Forget the boxes that were never members and have not been heard of for longest: a flood of names must not
        push out members."""
        while len(self._boxes) > MOST_BOXES:
            strangers = (key for key, box in self._boxes.items() if box.member_at is None and key != kept)
            del self._boxes[next(strangers, None) or next(iter(self._boxes))]


FINGERPRINT_DIGITS = 16


@dataclass(frozen=True, slots=True)
class AgentHint:
    """A hint that an agent may be at these addresses. `node_id` is None if only the address is known (--peer)."""

    node_id: str | None
    addresses: tuple[Address, ...]
    fingerprint: str
    """The cluster's fingerprint, 16 hex digits, or "" if it is unknown."""
    name: str
    """The box's name for people, any text of up to 63 characters."""
    ours: bool
    """Whether the agent claims to be in our cluster. Other agents are reported only so that a person can see them."""
    version: str = ""
    """The version that the agent claims to run, any text of up to 63 characters."""
