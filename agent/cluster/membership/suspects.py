"""Suspects: devices that may be dead, until members or a wait have settled it. Rules; time is an argument.

Members are asked whether they hear a suspect. It is dead when another member cannot reach it either, or when
there is nobody to ask (SWIM's indirect probe).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from zlib import crc32

from edgepart.agent.cluster.membership.failure_detector import DetectorTiming
from edgepart.agent.cluster.membership.peer import Peer
from edgepart.agent.cluster.membership.peer_table import PeerTable
from edgepart.agent.cluster.state.events import SendMessage
from edgepart.agent.wire.control import ALIVE, DEAD, LEFT, SUSPECT, AskAbout

MAX_ASKED = 8
"""The most members that are asked about a suspect; more members would not confirm it any better."""
MAX_ASKED_OF_MANY = 3
"""The same limit if more than MAX_ASKED devices are suspect: the questions about all of them have to fit into
the network together."""


class Suspects:
    """The suspects of one device, `me`."""

    def __init__(self, me: str, table: PeerTable, timing: DetectorTiming) -> None:
        self._me = me
        self._table = table
        self._timing = timing
        self._by_node: dict[str, Peer] = {}
        self._with_new_opinions: set[str] = set()
        """Suspects that some member gave an opinion of since they were last judged."""
        self._judge_at = math.inf
        """Without new opinions, no suspect has to be judged before this."""

    @property
    def nodes(self) -> Collection[str]:
        return self._by_node.keys()

    def note_status(self, peer: Peer) -> None:
        """Note that a device has a new status."""
        self._by_node.pop(peer.node, None)
        if peer.status == SUSPECT:
            self._by_node[peer.node] = peer

    def begin(self, peer: Peer, now: float) -> Iterator[SendMessage]:
        """Begin to ask about a device that has just become suspect."""
        peer.since, peer.opinions = now, {}
        yield from self.ask_about(peer, now)
        self._judge_at = min(self._judge_at, peer.ask_at, now + self._patience_s())

    def ask_about(self, peer: Peer, now: float) -> Iterator[SendMessage]:
        calm = now - peer.since > 10 * self._timing.ask_s  # A member vouches for it: no hurry any more.
        peer.ask_at = now + (self._timing.heartbeat_s if calm else self._timing.ask_s)
        asked = choose_asked(self._me, peer.node, self._table.alive(), suspects=len(self._by_node))
        peer.asks(asked)
        yield from (SendMessage(node, AskAbout(peer.node)) for node in asked)

    def take_opinion(self, about: str, teller: str, status: str) -> None:
        """Take a member's opinion; it counts if it is about a suspect."""
        if (peer := self._by_node.get(about)) is not None:
            peer.opinions[teller] = status
            self._with_new_opinions.add(about)

    def _patience_s(self) -> float:
        isolated = len(self._by_node) > 1 and not self._table.alive()
        return self._timing.isolated_s if isolated else self._timing.confirm_s

    def wake_at(self) -> float:
        """The time when the next suspect has to be judged if no opinion comes before; inf if there is none."""
        return self._judge_at if self._by_node else math.inf

    def is_due(self, now: float) -> bool:
        """Whether any suspect may have to be judged now."""
        return bool(self._with_new_opinions) or now >= self.wake_at()

    def take_due(self, now: float) -> list[Peer]:
        """The suspects that have to be judged now. Their opinions so far are not new any more."""
        said, self._with_new_opinions = self._with_new_opinions, set()
        due = now >= self._judge_at
        return [peer for peer in self._by_node.values() if due or peer.node in said]

    def judge(self, peer: Peer, now: float) -> tuple[str, bool]:
        """The status of a suspect, and whether members that can be asked had a say in it."""
        alive = self._table.alive_nodes()  # Without suspects.
        told = [status for node, status in peer.opinions.items() if node in alive]
        return judge_suspect(told, out_of_patience=now >= peer.since + self._patience_s()), bool(told)

    def plan_next(self, now: float) -> None:
        """Set the time when the suspects that are left have to be judged, if that of the last look is over."""
        if now >= self._judge_at:
            patience_s = self._patience_s()
            ends = [p.since + patience_s for p in self._by_node.values()]
            times = [*(p.ask_at for p in self._by_node.values()), *(end for end in ends if end > now)]
            self._judge_at = min(times, default=math.inf)


def choose_asked(me: str, about: str, alive: list[str], *, suspects: int = 1) -> list[str]:
    """The nodes that `me` asks about a suspect: all that are alive or, if these are many, a few, chosen
    differently for each suspect and each asker. `suspects`: the number of suspects.

    >>> choose_asked("a", "b", ["c", "d"])
    ['c', 'd']
    """
    most = MAX_ASKED if suspects <= MAX_ASKED else MAX_ASKED_OF_MANY
    if len(alive) <= most:
        return alive
    first = crc32(f"{me}{about}".encode()) % len(alive)
    return [alive[(first + at) % len(alive)] for at in range(most)]


def judge_suspect(opinions: Iterable[str], *, out_of_patience: bool) -> str:
    """The status of a suspect, by the newest opinions of the members that could be asked.

    >>> judge_suspect([SUSPECT, ALIVE], out_of_patience=True), judge_suspect([SUSPECT], out_of_patience=False)
    ('suspect', 'dead')
    >>> judge_suspect([], out_of_patience=False), judge_suspect([], out_of_patience=True)
    ('suspect', 'dead')
    """
    told = set(opinions)
    if LEFT in told:
        return LEFT
    if ALIVE in told:
        return SUSPECT
    return DEAD if told or out_of_patience else SUSPECT
