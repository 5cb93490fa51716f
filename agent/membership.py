"""Who is in: the rules, without I/O. Time is an argument.

Each pair of members holds one authenticated link. A closed link makes its device suspect at once, heartbeats
catch the silent ones; a suspect is dead when another member cannot reach it either, or when there is nobody
to ask. What this device has heard itself always counts more than what others say (SWIM's indirect probe and
refutation, and Lifeguard's doubt about oneself, on a full mesh instead of gossip). Who leads is election.py's
business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from edgepart.agent.control import (
    ALIVE,
    DEAD,
    LEAVING,
    LEFT,
    SUSPECT,
    AskAbout,
    Goodbye,
    Heartbeat,
    Hello,
    Leaving,
    Opinion,
    Sighting,
    View,
    understands_leaving,
)
from edgepart.agent.dialing import Dialing, DialTiming
from edgepart.agent.events import (
    AddressesChanged,
    ConnectFailed,
    Disconnect,
    Effect,
    LeaveAnnounced,
    LeaveRequested,
    LinkDown,
    LinkUp,
    Member,
    MembersChanged,
    PersistIncarnation,
    Received,
    Seen,
    Send,
)
from edgepart.agent.naming import unique_names as unique_names
from edgepart.agent.refusals import AGAIN_S, Refusals


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of failure detection: shorter notices earlier and errs more often."""

    heartbeat_s: float = 0.5
    silent_s: float = 2.0
    """A link that was silent for so long makes its device suspect; also the time for a first Hello."""
    fresh_s: float = 1.2
    """Only a device that was heard within this time is vouched for."""
    confirm_s: float = 0.3
    """With nobody to ask, or no answer, a suspect is dead after this."""
    isolated_s: float = 1.0
    """The same when all of several links broke together: the fault is likely here, so links get time to
    return."""
    ask_s: float = 0.1
    """Others are asked again about a suspect this often."""
    view_s: float = 5.0
    """Views are sent this often even when nothing changed."""
    late_s: float = 0.2
    """Woken later than this, a device doubts itself: time that it slept through is no silence of others."""
    most_slack_s: float = 2.0
    """By so much at most own lateness widens `silent_s`."""
    forget_s: float = 600.0
    """The dead and the left are remembered for so long."""
    dial: DialTiming = field(default_factory=DialTiming)

    def __post_init__(self) -> None:
        if not self.heartbeat_s < self.fresh_s < self.silent_s:
            raise ValueError("timing: heartbeat_s < fresh_s < silent_s must hold")


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
    ask_at: float = math.inf
    opinions: dict[str, str] = field(default_factory=dict)
    """Of the other members, since it is suspect."""
    leaving: bool = False
    """Whether this start of it is about to go."""

    @property
    def standing(self) -> str:
        """As a member."""
        return LEAVING if self.leaving and self.status == ALIVE else self.status


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


class Membership:
    """One device's view of who is in."""

    def __init__(self, facts: Facts, now: float, timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self.facts = facts
        self.peers: dict[str, Peer] = {}
        self.refusals = Refusals(facts.version)
        self._dialing = Dialing(facts.node, self.timing.dial)
        self._views: dict[str, View] = {}
        self._claim = ("", 0, 0)  # leader, its term, the largest term seen
        self._beat_at = now
        self._view_at = now + self.timing.view_s
        self._slack_s = 0.0
        self._due_at = self._settled_at = now
        self._leaving = self._left = False
        self._told: tuple[Member, ...] = self.members()
        self._shown: tuple[Sighting, ...] = self._sightings()

    # What others ask of it

    def members(self) -> tuple[Member, ...]:
        """Who is in, this device included, sorted by node id; suspects stay in until it is settled."""
        me = self.facts
        mine = LEAVING if self._leaving else ALIVE
        rows = [(me.node, me.name, me.boot, mine, me.listen, me.http, me.version)]
        for peer in self.peers.values():
            if peer.status in (ALIVE, SUSPECT):
                hello = peer.hello
                rows.append(
                    (
                        peer.node,
                        hello.name,
                        hello.boot,
                        peer.standing,
                        hello.listen,
                        hello.http,
                        hello.version,
                    )
                )
        names = unique_names((row[0], row[1]) for row in rows)
        return tuple(Member(row[0], names[row[0]], *row[2:]) for row in sorted(rows))

    def alive(self) -> list[str]:
        """The other members that were heard and can be sent to, sorted."""
        return sorted(node for node, peer in self.peers.items() if peer.status == ALIVE)

    def broken_links(self) -> frozenset[tuple[str, str]]:
        """Pairs of members of which at least one cannot reach the other, smaller id first."""
        me = self.facts.node
        inside = {member.node for member in self.members()}
        pairs = {(me, peer.node) for peer in self.peers.values() if peer.status == SUSPECT}
        for node in self.alive():
            if node in self._views:
                reached = {s.node for s in self._views[node].sightings if s.status == ALIVE}
                pairs |= {(node, other) for other in inside - reached - {me, node}}
        return frozenset((min(pair), max(pair)) for pair in pairs)

    def announce(self, leader: str, term: int, seen_term: int, now: float) -> None:
        """What heartbeats say of the leader from now on; news is sent at once."""
        if self._claim != (leader, term, seen_term):
            self._claim = (leader, term, seen_term)
            self._beat_at = now

    def wake_at(self) -> float:
        """When `wake` wants to be called; inf when never again."""
        if self._left:
            return math.inf
        times = [self._beat_at, self._view_at, self._dialing.wake_at()]
        for peer in self.peers.values():
            if peer.status in (ALIVE, ""):
                times.append(peer.heard_at + self._silent_s())
            elif peer.status == SUSPECT:
                times.append(peer.ask_at)
                if (patience_ends_at := peer.since + self._patience_s()) > self._settled_at:
                    times.append(patience_ends_at)
        return min(times)

    # Events

    def handle(self, event: object, now: float) -> list[Effect]:
        """Take one event. Events that are not about membership are none of its business."""
        if self._left:
            return []
        self._doubt_self(now)
        effects: list[Effect] = []
        match event:
            case LinkUp(node, via):
                effects += self._link_up(node, via, now)
            case LinkDown(node):
                effects += self._link_down(node, now)
            case ConnectFailed(node, addresses):
                self._dialing.failed(node, addresses, now)
            case Seen(node, addresses, lasting):
                self._dialing.hint(node, addresses, now, lasting=lasting)
            case AddressesChanged(listen, http):
                self.facts = replace(self.facts, listen=listen, http=http)
                effects += (Send(p.node, self._hello(reply=True)) for p in self.peers.values() if p.linked)
            case Received(node, message):
                effects += self._received(node, message, now)
            case LeaveAnnounced():
                self._leaving = True
                effects += (Send(node, Leaving(self.facts.boot)) for node in self._told_of_leaving())
            case LeaveRequested():
                return self._leave()
        return effects + self._settle(now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        if self._left:
            return []
        self._doubt_self(now)
        return self._settle(now)

    def _link_up(self, node: str, via: str, now: float) -> Iterator[Effect]:
        self._dialing.linked(node, via)
        if node == self.facts.node:
            yield Disconnect(node, "this is our own address")
            return
        peer = self.peers.get(node)
        if peer is None:
            peer = self.peers[node] = Peer(node, Hello(node, "", "", 0, (), "", ""), "", True, now, now)
        if not peer.linked:
            peer.linked = True
            if peer.status in ("", DEAD, LEFT):  # it has `silent_s` to say Hello
                peer.status, peer.since, peer.heard_at = "", now, now
        yield Send(node, self._hello(reply=False))

    def _link_down(self, node: str, now: float) -> Iterator[Effect]:
        self._dialing.unlinked(node, now)
        peer = self.peers.get(node)
        if peer is None:
            return
        peer.linked = False
        if peer.status == "":
            del self.peers[node]
        elif peer.status == ALIVE:
            yield from self._suspect(peer, now)

    def _suspect(self, peer: Peer, now: float) -> Iterator[Effect]:
        peer.status, peer.since, peer.opinions = SUSPECT, now, {}
        self._dialing.dial_soon(peer.node, now)
        yield from self._ask(peer, now)

    def _ask(self, peer: Peer, now: float) -> Iterator[Effect]:
        calm = now - peer.since > 10 * self.timing.ask_s  # someone vouches for it: no hurry any more
        peer.ask_at = now + (self.timing.heartbeat_s if calm else self.timing.ask_s)
        for node in self.alive():
            yield Send(node, AskAbout(peer.node))

    # Messages

    def _received(self, node: str, message: object, now: float) -> Iterator[Effect]:
        if isinstance(message, Hello):
            yield from self._greeted(node, message, now)
            return
        peer = self.peers.get(node)
        if peer is None or peer.hello.boot == "" or peer.status in ("", DEAD, LEFT):
            return  # first say Hello
        match message:
            case Heartbeat(boot, incarnation):
                if boot != peer.hello.boot:
                    return  # from before its restart
                peer.hello = replace(peer.hello, incarnation=max(incarnation, peer.hello.incarnation))
            case Leaving(boot):
                peer.leaving |= boot == peer.hello.boot
            case Goodbye():
                self._gone(peer, LEFT, now)
                yield Disconnect(node, "it left")
                return
            case View():
                yield from self._viewed(node, message, now)
            case AskAbout(about):
                yield Send(node, Opinion(about, self._opinion(about, now)))
            case Opinion(about, status):
                if (suspect := self.peers.get(about)) and suspect.status == SUSPECT:
                    suspect.opinions[node] = status
        self._heard(peer, now)

    def _heard(self, peer: Peer, now: float) -> None:
        peer.heard_at = now
        if peer.status == SUSPECT and peer.linked:
            peer.status, peer.since, peer.ask_at = ALIVE, now, math.inf
        elif not peer.linked:
            self._dialing.hint(peer.node, peer.hello.listen, now)

    def _greeted(self, node: str, hello: Hello, now: float) -> Iterator[Effect]:
        if hello.node != node or node == self.facts.node:
            yield Disconnect(node, f"it says that it is {hello.node!r}, its certificate says {node!r}")
            return
        peer = self.peers.get(node)
        if self.refusals.look(hello, now):
            yield from self._refuse(node, peer, hello, now)
            return
        if peer is not None and peer.status == LEFT and peer.hello.boot == hello.boot:
            return
        if peer is None:
            peer = self.peers[node] = Peer(node, hello, "", False, now, now)
        news = peer.hello.boot != hello.boot or peer.status != ALIVE
        peer.leaving &= peer.hello.boot == hello.boot
        peer.hello, peer.heard_at = hello, now
        self._dialing.moved(node, hello.listen, now)
        if not peer.linked:
            if not self._dialing.knows(node):
                return
            if peer.status in (DEAD, LEFT):
                peer.status, peer.since = "", now
            self._dialing.dial_soon(node, now)
            return
        if not hello.reply:
            yield Send(node, self._hello(reply=True))
        self._dialing.linked(node, "")
        peer.status, peer.ask_at = ALIVE, math.inf
        if news:
            peer.since = now
            self._views.pop(node, None)
        yield Send(node, self._beat())
        yield Send(node, View(self._sightings()))
        if self._leaving and understands_leaving(hello.version):
            yield Send(node, Leaving(self.facts.boot))

    def _refuse(self, node: str, peer: Peer | None, hello: Hello, now: float) -> Iterator[Effect]:
        """It learns who we are, and so why; after that the link ends as that of one who never said Hello."""
        if peer is None or not peer.linked:  # our Hello goes with the link
            self._dialing.hint(node, hello.listen, now)
            return
        self._dialing.put_off(node, now + AGAIN_S, now)
        if not hello.reply:
            yield Send(node, self._hello(reply=True))
        if peer.status != "":
            peer.status, peer.since = "", now
        peer.hello, peer.heard_at = replace(hello, boot=""), now

    def expel(self, node: str, now: float) -> list[Effect]:
        """That member is none any more, whatever it does."""
        peer = self.peers.get(node)
        if peer is None or peer.status not in (ALIVE, SUSPECT):
            return []
        self._gone(peer, LEFT, now)
        return [Disconnect(node, "it was removed from the cluster"), *self._settle(now)]

    def _viewed(self, sender: str, view: View, now: float) -> Iterator[Effect]:
        self._views[sender] = view
        for s in view.sightings:
            if s.node == self.facts.node:
                outdated = s.incarnation > self.facts.incarnation
                if outdated or (s.status in (DEAD, LEFT) and s.incarnation == self.facts.incarnation):
                    self.facts = replace(self.facts, incarnation=s.incarnation + 1)
                    self._beat_at = now
                    yield PersistIncarnation(self.facts.incarnation)
                continue
            peer = self.peers.get(s.node)
            if peer is not None and peer.status == SUSPECT and s.status != ALIVE:
                peer.opinions[sender] = s.status
            elif s.status == ALIVE and (peer is None or self._may_be_back(peer, s, now)):
                self._dialing.hint(s.node, s.listen, now)
                if peer is not None:
                    self._dialing.dial_soon(s.node, now)

    def _may_be_back(self, peer: Peer, sighting: Sighting, now: float) -> bool:
        if peer.status == LEFT:
            return sighting.incarnation > peer.hello.incarnation
        return peer.status == DEAD and now - peer.since > self.timing.confirm_s

    # Time

    def _doubt_self(self, now: float) -> None:
        """Time that this device slept through is not counted as anybody's silence, and makes it more
        patient."""
        late_s = now - self._due_at
        if late_s > self.timing.late_s:
            for peer in self.peers.values():
                peer.heard_at = min(now, peer.heard_at + late_s)
                if peer.status == SUSPECT:
                    peer.since = min(now, peer.since + late_s)
            self._slack_s = min(max(self._slack_s, late_s), self.timing.most_slack_s)

    def _silent_s(self) -> float:
        return self.timing.silent_s + self._slack_s

    def _patience_s(self) -> float:
        suspects = sum(peer.status == SUSPECT for peer in self.peers.values())
        isolated = suspects > 1 and not self.alive()
        return self.timing.isolated_s if isolated else self.timing.confirm_s

    def _settle(self, now: float) -> list[Effect]:
        """What time brings, then what has to be told about all that changed."""
        effects: list[Effect] = list(self._silences(now))
        effects += self._verdicts(now)
        effects += self._dialing.wake(now)
        if now >= self._beat_at:
            leader, term, seen = self._claim
            beat = Heartbeat(self.facts.boot, self.facts.incarnation, seen, leader, term)
            effects += [
                Send(n, beat) for n, p in self.peers.items() if p.linked and p.status in (ALIVE, SUSPECT)
            ]
            self._beat_at = now + self.timing.heartbeat_s
            self._slack_s *= 0.97  # a stall is forgotten in about a minute
        effects += self._tell(now)
        self._settled_at = now
        self._due_at = self.wake_at()
        return effects

    def _silences(self, now: float) -> Iterator[Effect]:
        for peer in list(self.peers.values()):
            if peer.status == ALIVE and now >= peer.heard_at + self._silent_s():
                yield from self._suspect(peer, now)
            elif peer.status == "" and now >= peer.heard_at + self._silent_s():
                del self.peers[peer.node]
                self._dialing.unlinked(peer.node, now)
                yield Disconnect(peer.node, self.refusals.why(peer.node) or "it did not say Hello")
            elif peer.status in (DEAD, LEFT) and now - peer.since >= self.timing.forget_s:
                del self.peers[peer.node]

    def _verdicts(self, now: float) -> Iterator[Effect]:
        for peer in list(self.peers.values()):
            if peer.status != SUSPECT:
                continue
            alive = set(self.alive())
            told = [status for node, status in peer.opinions.items() if node in alive]
            status = verdict(told, out_of_patience=now >= peer.since + self._patience_s())
            if status != SUSPECT:
                self._gone(peer, status, now)
                yield Disconnect(peer.node, f"it is {status}")
            elif now >= peer.ask_at:
                yield from self._ask(peer, now)

    def _gone(self, peer: Peer, status: str, now: float) -> None:
        peer.status, peer.since, peer.linked, peer.ask_at = status, now, False, math.inf
        self._views.pop(peer.node, None)
        if status == LEFT:
            self._dialing.forget(peer.node)
        else:
            self._dialing.unlinked(peer.node, now)

    def _tell(self, now: float) -> Iterator[Effect]:
        members, sightings = self.members(), self._sightings()
        if members != self._told:
            self._told = members
            yield MembersChanged(members)
        if now >= self._view_at or [(s.node, s.status) for s in sightings] != [
            (s.node, s.status) for s in self._shown
        ]:
            self._shown, self._view_at = sightings, now + self.timing.view_s
            for node in self.alive():
                yield Send(node, View(sightings))

    # Small things

    def _told_of_leaving(self) -> list[str]:
        return [node for node in self.alive() if understands_leaving(self.peers[node].hello.version)]

    def _leave(self) -> list[Effect]:
        self._left = True
        linked = [node for node, peer in self.peers.items() if peer.linked]
        return [Send(node, Goodbye(self.facts.incarnation)) for node in linked]

    def _opinion(self, node: str, now: float) -> str:
        peer = self.peers.get(node)
        if peer is None or peer.status == "":
            return DEAD
        fresh = peer.linked and now - peer.heard_at < self.timing.fresh_s + self._slack_s
        return SUSPECT if peer.status == ALIVE and not fresh else peer.status

    def _hello(self, *, reply: bool) -> Hello:
        me = self.facts
        return Hello(me.node, me.name, me.boot, me.incarnation, me.listen, me.http, me.version, reply)

    def _beat(self) -> Heartbeat:
        leader, term, seen = self._claim
        return Heartbeat(self.facts.boot, self.facts.incarnation, seen, leader, term)

    def _sightings(self) -> tuple[Sighting, ...]:
        me = self.facts
        rows = [Sighting(me.node, me.incarnation, ALIVE, me.name, me.listen)]
        for node, peer in sorted(self.peers.items()):
            if peer.status:
                hello = peer.hello
                rows.append(Sighting(node, hello.incarnation, peer.status, hello.name, hello.listen))
        return tuple(rows)
