"""Peers: what this device knows of another device. Facts and rules, without I/O."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from edgepart.agent.cluster.membership.failure_detector import DetectorTiming, FrameGaps
from edgepart.agent.cluster.state.events import Member
from edgepart.agent.wire.control import ALIVE, LEAVING, Doors, Hello, Sighting, Starved


@dataclass(slots=True)
class Peer:
    """Another device, as far as this device knows it."""

    node: str
    hello: Hello
    status: str
    linked: bool
    """Whether frames can be sent to the device."""
    heard_at: float
    since: float
    """The time when `status` was last changed."""
    gaps: FrameGaps
    """The gaps between the device's frames on this link."""
    ask_at: float = math.inf
    opinions: dict[str, str] = field(default_factory=dict)
    """The opinions of other members about the device since it became suspect, by node."""
    leaving: bool = False
    """Whether the device's present process is about to stop."""
    counted: bool = False
    """Whether flapping.py knows of the device's last loss, or need not know, because the device left on
    purpose."""

    starved: Starved = field(default_factory=Starved)
    """The device's last word on whether it is starved."""
    starved_since: float = -math.inf
    starved_until: float = -math.inf
    """If the device is still starved, it says so again before this time."""

    doors: Doors | None = None
    """What the device said last of where clients reach it."""

    _sighting: Sighting | None = None
    _row: Member | None = None

    @property
    def grpc(self) -> str | None:
        """As in Member; what an earlier process of the device has said does not count."""
        doors = self.doors
        return doors.grpc if doors is not None and doors.boot == self.hello.boot else None

    @property
    def standing(self) -> str:
        """The device's status as members see it."""
        return LEAVING if self.leaving and self.status == ALIVE else self.status

    def hear(self, now: float) -> None:
        """Note a frame from the device."""
        if self.linked:
            self.gaps.note(now - self.heard_at)
        self.heard_at = now

    def starves(self, starved: Starved, now: float, timing: DetectorTiming) -> None:
        """Note what the device says about whether it is starved."""
        if now >= self.starved_until:
            self.starved_since = now
        self.starved = starved
        self.starved_until = now + timing.starved_s if starved.share else -math.inf

    def starvation_at(self, when: float, most_s: float = math.inf) -> Starved:
        """Whether the device was starved at `when`, as far as it had said by then. Starvation for longer than
        `most_s` counts as lasting, whatever the device says."""
        if when >= self.starved_until:
            return Starved()
        return replace(self.starved, lasting=self.starved.lasting or when >= self.starved_since + most_s)

    def bound_s(self, now: float) -> float:
        """How long the device may be silent now, in seconds. A starved device may be silent for longer,
        because it has said why its frames may be late."""
        return (
            max(self.gaps.bound_s, self.gaps.timing.most_s) if now < self.starved_until else self.gaps.bound_s
        )

    def asks(self, nodes: Collection[str]) -> None:
        """Note which nodes are asked from now on. A node that vouched for the device and is not asked again
        may have changed its mind, so its opinion is dropped."""
        self.opinions = {n: said for n, said in self.opinions.items() if said != ALIVE or n in nodes}

    def sighting(self) -> Sighting:
        """The device as views show it; the same object as long as nothing changes."""
        known, hello = self._sighting, self.hello
        if (
            known is None
            or known.status != self.status
            or known.incarnation != hello.incarnation
            or known.listen is not hello.listen
            or known.name is not hello.name
        ):
            known = Sighting(self.node, hello.incarnation, self.status, hello.name, hello.listen)
            self._sighting = known
        return known

    def row(self, name: str, status: str, note: str) -> Member:
        """The device as a member with that unique name; the same object as long as nothing changes."""
        known, hello = self._row, self.hello
        if (
            known is None
            or known.status != status
            or known.note != note
            or known.name != name
            or known.boot is not hello.boot
            or known.listen is not hello.listen
            or known.http is not hello.http
            or known.grpc != self.grpc
        ):
            facts = (hello.boot, status, hello.listen, hello.http, hello.version)
            known = Member(self.node, name, *facts, note, self.grpc)
            self._row = known
        return known
