"""How this device says Hello, what it knows of another one, and what becomes of a suspect. Facts and rules, without I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from zlib import crc32

from edgepart.agent.cluster.membership.failure_detector import DetectorTiming, Gaps
from edgepart.agent.cluster.state.events import Member
from edgepart.agent.wire.control import ALIVE, DEAD, LEAVING, LEFT, SUSPECT, Hello, Sighting, Starved

ASKED = 8
"""Members that are asked about a suspect at most: more confirm no better."""
ASKED_OF_MANY = 3
"""The same where more than ASKED are suspect: all questions about all of them have to fit into the network together."""


@dataclass(frozen=True, slots=True)
class Facts:
    """This device, as it says Hello."""

    node: str
    name: str
    boot: str
    incarnation: int
    """Larger than at any earlier start (the shell persists it)."""
    listen: tuple[str, ...] = ()
    http: str = ""
    version: str = ""


@dataclass(slots=True)
class Peer:
    """What is known of one other device."""

    node: str
    hello: Hello
    status: str
    linked: bool
    """Frames can be sent."""
    heard_at: float
    since: float
    """When `status` became what it is."""
    gaps: Gaps
    """Between its frames, on this link."""
    ask_at: float = math.inf
    opinions: dict[str, str] = field(default_factory=dict)
    """Of the other members, since it is suspect."""
    leaving: bool = False
    """Whether this start of it is about to go."""
    counted: bool = False
    """Whether its last loss is known to flapping.py, or was none, as it left on purpose."""

    starved: Starved = field(default_factory=Starved)
    """As it said last."""
    starved_since: float = -math.inf
    starved_until: float = -math.inf
    """It says so again before, if it still is."""

    _sighting: Sighting | None = None
    _row: Member | None = None

    @property
    def standing(self) -> str:
        """As a member."""
        return LEAVING if self.leaving and self.status == ALIVE else self.status

    def starves(self, starved: Starved, now: float, timing: DetectorTiming) -> None:
        """It has said so."""
        if now >= self.starved_until:
            self.starved_since = now
        self.starved = starved
        self.starved_until = now + timing.starved_s if starved.share else -math.inf

    def starved_at(self, when: float, most_s: float = math.inf) -> Starved:
        """As far as it had said by then. One that is starved for longer than `most_s` is so lastingly, whatever it says."""
        if when >= self.starved_until:
            return Starved()
        return replace(self.starved, lasting=self.starved.lasting or when >= self.starved_since + most_s)

    def bound_s(self, now: float) -> float:
        """How long it may be silent now. One that is starved has said why its frames may be late."""
        return (
            max(self.gaps.bound_s, self.gaps.timing.most_s) if now < self.starved_until else self.gaps.bound_s
        )

    def asks(self, nodes: Collection[str]) -> None:
        """From now on these are asked. Who vouched for it once and is not asked again may have changed its mind."""
        self.opinions = {n: said for n, said in self.opinions.items() if said != ALIVE or n in nodes}

    def sighting(self) -> Sighting:
        """As views show it; the same object while it is the same."""
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
        """As a member with that unique name; the same object while it is the same."""
        known, hello = self._row, self.hello
        if (
            known is None
            or known.status != status
            or known.note != note
            or known.name != name
            or known.boot is not hello.boot
            or known.listen is not hello.listen
            or known.http is not hello.http
        ):
            known = Member(self.node, name, hello.boot, status, hello.listen, hello.http, hello.version, note)
            self._row = known
        return known


def to_ask(me: str, about: str, alive: list[str], *, suspects: int = 1) -> list[str]:
    """Whom `me` asks about a suspect: all that are alive; of many some, others for each suspect and each that asks.
    `suspects`: how many there are.

    >>> to_ask("a", "b", ["c", "d"])
    ['c', 'd']
    """
    most = ASKED if suspects <= ASKED else ASKED_OF_MANY
    if len(alive) <= most:
        return alive
    first = crc32(f"{me}{about}".encode()) % len(alive)
    return [alive[(first + at) % len(alive)] for at in range(most)]


def verdict(opinions: Iterable[str], *, out_of_patience: bool) -> str:
    """What a suspect is, from the newest opinions of those that could be asked.

    >>> verdict([SUSPECT, ALIVE], out_of_patience=True), verdict([SUSPECT], out_of_patience=False)
    ('suspect', 'dead')
    >>> verdict([], out_of_patience=False), verdict([], out_of_patience=True)
    ('suspect', 'dead')
    """
    told = set(opinions)
    if LEFT in told:
        return LEFT
    if ALIVE in told:
        return SUSPECT
    return DEAD if told or out_of_patience else SUSPECT
