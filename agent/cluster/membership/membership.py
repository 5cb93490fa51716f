"""Membership: which devices are members. Rules, without I/O; time is an argument.

Each pair of members holds one authenticated link. A closed link makes its device suspect at once, and
heartbeats catch silent devices. A suspect is dead when another member cannot reach it either, or when there
is nobody to ask. What this device has heard itself always counts more than what members say. (These are
SWIM's indirect probe and refutation, and Lifeguard's doubt about oneself, on a full mesh instead of gossip.)
This module moves devices from status to status; the parts that it asks each keep one kind of knowledge.
election.py decides who leads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from edgepart.agent.cluster.membership.admit import RECALL_S, Refusals
from edgepart.agent.cluster.membership.failure_detector import DetectorTiming, FrameGaps
from edgepart.agent.cluster.membership.flapping import LossHistory
from edgepart.agent.cluster.membership.heartbeats import Heartbeats
from edgepart.agent.cluster.membership.own_state import OwnFacts, OwnState
from edgepart.agent.cluster.membership.own_view import OwnView
from edgepart.agent.cluster.membership.peer import Peer
from edgepart.agent.cluster.membership.peer_table import PeerTable
from edgepart.agent.cluster.membership.redial import Redialer
from edgepart.agent.cluster.membership.silence import SilenceWatch
from edgepart.agent.cluster.membership.suspects import Suspects
from edgepart.agent.cluster.membership.views import MemberViews
from edgepart.agent.cluster.state.events import (
    AddressesChanged,
    ConnectFailed,
    DeviceSeen,
    Disconnect,
    DoorsOpened,
    Effect,
    LeaveAnnounced,
    LeaveRequested,
    LinkDown,
    LinkUp,
    Member,
    MembersChanged,
    MessageReceived,
    PersistIncarnation,
    SendMessage,
    StarvationSeen,
)
from edgepart.agent.wire.control import (
    ALIVE,
    DEAD,
    LEFT,
    SUSPECT,
    AskAbout,
    Doors,
    Goodbye,
    Heartbeat,
    Hello,
    Leaving,
    Opinion,
    Sighting,
    Starved,
    View,
)


class Membership:
    """One device's view of the members."""

    def __init__(self, facts: OwnFacts, now: float, timing: DetectorTiming | None = None) -> None:
        self.timing = timing or DetectorTiming()
        self.refusals = Refusals(facts.version)
        self._own = OwnState(facts)
        self._flapping = LossHistory(self.timing.flaps)
        self._table = PeerTable(self._own, self._flapping, now)
        self.peers = self._table.by_node
        self._silence = SilenceWatch(self._own, self.timing)
        self._suspects = Suspects(facts.node, self._table, self.timing)
        self._dialing = Redialer(facts.node, self.timing.dial)
        self._heartbeats = Heartbeats(self._own, self.peers, self.timing.heartbeat_s, now)
        self._views = MemberViews(facts.node)
        self._own_view = OwnView(self._table, self.timing, now)
        self._wake_at = now
        self._dirty = True
        """Whether anything changed since `_settle` last ran."""
        self._left = False
        self._last_members: tuple[Member, ...] = self.members()

    # Queries

    @property
    def facts(self) -> OwnFacts:
        """This device as its Hello describes it."""
        return self._own.facts

    def members(self) -> tuple[Member, ...]:
        """The members, this device included, sorted by node id. Suspects stay members until the suspicion is
        settled."""
        return self._table.members()

    def alive(self) -> list[str]:
        """The other members that are heard and can be sent to, sorted. The caller must not change the
        list."""
        return self._table.alive()

    def is_meeting(self) -> bool:
        """Whether this device may be about to meet another one: it dials one that has neither answered nor failed to, or
        has a link over which no Hello has come yet."""
        return self._dialing.is_trying() or any(peer.status == "" for peer in self.peers.values())

    def starvation_of(self, node: str, now: float) -> Starved:
        """Whether a member, or this device, is starved of the CPU, as far as it has said."""
        if node == self.facts.node:
            return self._own.starved
        peer = self.peers.get(node)
        most_s = self.timing.starved_most_s
        return peer.starvation_at(now, most_s) if peer is not None else Starved()

    def broken_links(self) -> frozenset[tuple[str, str]]:
        """The pairs of members of which at least one cannot reach the other, smaller id first."""
        inside = [member.node for member in self.members()]
        return self._views.broken_links(inside, self.alive(), self._suspects.nodes)

    def seen_otherwise(self) -> bool:
        """Whether any member's view has changed since this was last asked."""
        return self._views.has_changed()

    def remind(self) -> Iterator[Effect]:
        """Tell the other members again that this device is starved, while it is."""
        return self._own.tell_starved(self._table.alive_peers()) if self._own.starved.share else iter(())

    def announce(self, leader: str, term: int, seen_term: int, now: float) -> None:
        """Set what heartbeats say about the leader. If that is news, heartbeats are sent at once."""
        self._dirty |= self._heartbeats.announce(leader, term, seen_term, now)

    def wake_at(self) -> float:
        """The time when `wake` has to be called; inf if never again."""
        return math.inf if self._left else self._wake_at

    # Events

    def handle(self, event: object, now: float) -> list[Effect]:
        """Take one event. Events that do not concern membership are ignored."""
        if self._left:
            return []
        self._doubt_self(now)
        self._dirty = True
        effects: list[Effect] = []
        match event:
            case LinkUp(node, via):
                effects += self._link_up(node, via, now)
            case LinkDown(node):
                effects += self._link_down(node, now)
            case ConnectFailed(node, addresses):
                self._dialing.failed(node, addresses, now)
            case DeviceSeen(node, addresses, lasting):
                self._dialing.hint(node, addresses, now, lasting=lasting)
            case AddressesChanged(listen, http):
                self._own.facts = replace(self.facts, listen=listen, http=http)
                self._mark_changed()
                hello = self._own.hello(reply=True)
                effects += (SendMessage(peer.node, hello) for peer in self._linked())
            case DoorsOpened(grpc):
                self._own.facts = replace(self.facts, grpc=grpc)
                self._mark_changed()
                effects += self._own.tell_doors(self._table.alive_peers())
            case MessageReceived(node, message):
                effects += self._receive(node, message, now)
            case StarvationSeen(starved):
                self._own.starved = starved
                effects += self._own.tell_starved(self._table.alive_peers())
            case LeaveAnnounced():
                self._own.leaving = True
                self._mark_changed()
                effects += self._own.tell_leaving(self._table.alive_peers())
            case LeaveRequested():
                self._left = True
                return [*self._own.say_goodbye(self._linked())]
        return effects + self._settle(now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        if self._left or (not self._dirty and now < self._wake_at):
            return []
        self._doubt_self(now)
        return self._settle(now)

    def expel(self, node: str, now: float) -> list[Effect]:
        """End a device's membership, whatever it does."""
        peer = self.peers.get(node)
        if peer is None or peer.status not in (ALIVE, SUSPECT):
            return []
        self._end_membership(peer, LEFT, now)
        return [Disconnect(node, "it was removed from the cluster"), *self._settle(now)]

    # Messages that need no more than a note

    def hears(self, node: str, now: float) -> bool:
        """Note a frame that says nothing new about its sender. Returns False, and notes nothing, if more has
        to be done for the sender; `handle` does that."""
        peer = self.peers.get(node)
        if peer is None or peer.status != ALIVE or not peer.linked or self._dirty or now >= self._wake_at:
            return False
        peer.hear(now)
        return True

    def beats(self, node: str, beat: Heartbeat, now: float) -> bool:
        """Do as `hears` does, for a heartbeat in which only the leader and its terms may be new."""
        peer = self.peers.get(node)
        same = (
            peer is not None and peer.hello.boot == beat.boot and peer.hello.incarnation >= beat.incarnation
        )
        return same and self.hears(node, now)

    def sees(self, node: str, view: View, now: float) -> bool:
        """Do as `hears` does, for a view. Returns False if the view has news of this device, of a suspect, or
        of a device that may be back."""
        mine, own = self.facts.node, view.by_node.get(self.facts.node)
        if own is not None and own.incarnation > self.facts.incarnation:
            return False
        if mine in view.away or not view.away.isdisjoint(self._suspects.nodes):
            return False
        unknown = view.reached - self._table.alive_nodes() - {mine}
        if not unknown.isdisjoint(self.peers) or not all(map(self._dialing.knows, unknown)):
            return False
        if not self.hears(node, now):
            return False
        self._views.take(node, view.reached)
        for other in sorted(unknown):
            self._dialing.hint(other, view.by_node[other].listen, now)
        self._wake_at = min(self._wake_at, self._dialing.wake_at())
        return True

    def opines(self, node: str, about: str, now: float) -> Opinion | None:
        """Do as `hears` does, for a question about a device. Returns the answer; None if more has to be
        done."""
        return Opinion(about, self._opinion(about, now)) if self.hears(node, now) else None

    # Links

    def _linked(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.linked]

    def _link_up(self, node: str, via: str, now: float) -> Iterator[Effect]:
        self._dialing.linked(node, via)
        self._heartbeats.outdated()
        if node == self.facts.node:
            yield Disconnect(node, "this is our own address")
            return
        peer = self.peers.get(node)
        if peer is None:
            peer = self.peers[node] = self._new(Hello(node, "", "", 0, (), "", ""), now)
            peer.linked = True
        if not peer.linked:
            peer.linked = True
            if peer.status in ("", DEAD, LEFT):  # It has `hello_s` to say Hello.
                self._set_status(peer, "", now)
                peer.since = peer.heard_at = now
        yield SendMessage(node, self._own.hello(reply=False))

    def _new(self, hello: Hello, now: float) -> Peer:
        return Peer(hello.node, hello, "", False, now, now, FrameGaps(self.timing.silence))

    def _link_down(self, node: str, now: float) -> Iterator[Effect]:
        self._dialing.unlinked(node, now)
        peer = self.peers.get(node)
        if peer is None:
            return
        peer.linked = False
        self._heartbeats.outdated()
        if peer.status == "":
            del self.peers[node]
        elif peer.status == ALIVE:
            yield from self._suspect(peer, now)

    # Messages

    def _receive(self, node: str, message: object, now: float) -> Iterator[Effect]:
        if isinstance(message, Hello):
            yield from self._receive_hello(node, message, now)
            return
        peer = self.peers.get(node)
        if peer is None or peer.hello.boot == "" or peer.status in ("", DEAD, LEFT):
            return  # It has to say Hello first.
        match message:
            case Heartbeat(boot, incarnation):
                if boot != peer.hello.boot:
                    # The heartbeat is from before the restart, or the new Hello got lost.
                    yield SendMessage(node, self._own.hello(reply=False))
                    return
                if incarnation > peer.hello.incarnation:
                    peer.hello = replace(peer.hello, incarnation=incarnation)
            case Starved():
                peer.starves(message, now, self.timing)
                self._silence.look_soon(now)
            case Doors():
                peer.doors = message
                self._mark_changed(peer)
            case Leaving(boot):
                peer.leaving |= boot == peer.hello.boot
                self._mark_changed(peer)
            case Goodbye():
                self._end_membership(peer, LEFT, now)
                yield Disconnect(node, "it left")
                return
            case View():
                yield from self._receive_view(node, message, now)
            case AskAbout(about):
                yield SendMessage(node, Opinion(about, self._opinion(about, now)))
            case Opinion(about, status):
                self._suspects.take_opinion(about, node, status)
        self._note_frame(peer, now)

    def _note_frame(self, peer: Peer, now: float) -> None:
        peer.hear(now)
        if peer.status == SUSPECT and peer.linked:
            self._set_status(peer, ALIVE, now)
            peer.since, peer.ask_at = now, math.inf
        elif not peer.linked:
            self._dialing.hint(peer.node, peer.hello.listen, now)

    def _receive_hello(self, node: str, hello: Hello, now: float) -> Iterator[Effect]:
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
            peer = self.peers[node] = self._new(hello, now)
        news = peer.hello.boot != hello.boot or peer.status != ALIVE
        peer.leaving &= peer.hello.boot == hello.boot
        if peer.hello.boot not in ("", hello.boot) and not peer.counted:
            self._flapping.lost(node, now)
            peer.counted = True
        moved = (peer.hello.listen, peer.hello.http) != (hello.listen, hello.http)
        peer.hello, peer.heard_at = hello, now
        if news or moved:
            self._mark_changed(peer)
        self._dialing.moved(node, hello.listen, now)
        if peer.linked:
            yield from self._greet(peer, now, news=news)
        elif self._dialing.knows(node):
            if peer.status in (DEAD, LEFT):
                self._set_status(peer, "", now)
                peer.since = now
            self._dialing.dial_soon(node, now)

    def _greet(self, peer: Peer, now: float, *, news: bool) -> Iterator[Effect]:
        """Answer a member's Hello. `news`: whether it was no member before, or another process."""
        node, reply = peer.node, peer.hello.reply
        if not reply:
            yield SendMessage(node, self._own.hello(reply=True))
        self._dialing.linked(node, "")
        peer.ask_at, peer.counted = math.inf, False
        if news:
            self._set_status(peer, ALIVE, now)
            self._flapping.back(node, now)
            peer.since, peer.gaps, peer.starved_until = now, FrameGaps(self.timing.silence), -math.inf
            self._views.forget(node)
        if reply and not news:  # It was told all this when it said Hello by itself.
            return
        yield SendMessage(node, self._heartbeats.newest())
        yield SendMessage(node, self._own_view.for_newcomer(now))
        yield from self._own.introduce(peer)

    def _refuse(self, node: str, peer: Peer | None, hello: Hello, now: float) -> Iterator[Effect]:
        """Answer with a Hello, so that the device sees why it is refused. The link then ends as for a device
        that never said Hello."""
        if peer is None or not peer.linked:  # Our Hello is sent when the link is up.
            self._dialing.hint(node, hello.listen, now)
            return
        self._dialing.put_off(node, now + RECALL_S, now)
        if not hello.reply:
            yield SendMessage(node, self._own.hello(reply=True))
        if peer.status != "":
            self._set_status(peer, "", now)
            peer.since = now
        peer.hello, peer.heard_at = replace(hello, boot=""), now

    def _receive_view(self, sender: str, view: View, now: float) -> Iterator[Effect]:
        self._views.take(sender, view.reached)
        news = (view.reached - self._table.alive_nodes()) | view.away
        for s in map(view.by_node.__getitem__, sorted(news)):
            if s.node == self.facts.node:
                if (answer := self._own.hear(sender, s)) is not None:
                    yield answer
                if isinstance(answer, PersistIncarnation):
                    self._heartbeats.hurry(now)
                continue
            peer = self.peers.get(s.node)
            if peer is not None and peer.status == SUSPECT and s.status != ALIVE:
                self._suspects.take_opinion(s.node, sender, s.status)
            elif s.status == ALIVE and (peer is None or self._may_be_back(peer, s, now)):
                self._dialing.hint(s.node, s.listen, now)
                if peer is not None:
                    self._dialing.dial_soon(s.node, now)

    def _may_be_back(self, peer: Peer, sighting: Sighting, now: float) -> bool:
        if peer.status == LEFT:
            return sighting.incarnation > peer.hello.incarnation
        return peer.status == DEAD and now - peer.since > self.timing.confirm_s

    def _opinion(self, node: str, now: float) -> str:
        peer = self.peers.get(node)
        if peer is None or peer.status == "":
            return DEAD
        return SUSPECT if peer.status == ALIVE and not self._silence.hears(peer, now) else peer.status

    # From status to status

    def _mark_changed(self, *peers: Peer) -> None:
        """Note that something changed in these devices, or in this one, that views or `members()` show."""
        self._dirty = True
        self._table.touch(*peers)
        self._heartbeats.outdated()
        self._views.outdated()

    def _set_status(self, peer: Peer, status: str, now: float) -> None:
        """Set the status of a device."""
        peer.status = status
        self._suspects.note_status(peer)
        if status == "" or status == ALIVE:  # Both begin with a frame or a new link.
            self._silence.look_soon(now)
        self._own_view.note_change(now)
        self._mark_changed(peer)

    def _suspect(self, peer: Peer, now: float) -> Iterator[Effect]:
        self._set_status(peer, SUSPECT, now)
        self._dialing.dial_soon(peer.node, now)
        yield from self._suspects.begin(peer, now)

    def _end_membership(self, peer: Peer, status: str, now: float) -> None:
        self._set_status(peer, status, now)
        peer.since, peer.linked, peer.ask_at = now, False, math.inf
        self._views.forget(peer.node)
        if status == LEFT:
            peer.counted = True
            self._dialing.forget(peer.node)
        else:
            self._dialing.unlinked(peer.node, now)

    # Time

    def _doubt_self(self, now: float) -> None:
        self._silence.doubt_self(now - self._wake_at, self.peers.values(), now)

    def _settle(self, now: float) -> list[Effect]:
        """Do what is due, then tell the driver and the members what changed."""
        effects: list[Effect] = []
        if now >= min(self._silence.due_at, self._heartbeats.due_at):
            effects += self._check_silences(now)
            self._silence.plan_next(self.peers.values(), now)
        if self._suspects.is_due(now):
            effects += self._judge_suspects(now)
        effects += self._dialing.wake(now)
        if now >= self._heartbeats.due_at:
            effects += self._heartbeats.send(now)
            self._silence.forget_lateness()
        self._table.wake(now)
        members = self.members()
        if members is not self._last_members and members != self._last_members:
            effects.append(MembersChanged(members))
        self._last_members = members
        effects += self._own_view.wake(now)
        self._dirty = False
        self._wake_at = self._next_wake()
        return effects

    def _check_silences(self, now: float) -> Iterator[Effect]:
        for peer in list(self.peers.values()):
            if peer.status in (DEAD, LEFT):
                if now - peer.since >= self.timing.forget_s:
                    del self.peers[peer.node]
            elif self._silence.is_too_long(peer, now):
                if peer.status == ALIVE:
                    yield from self._suspect(peer, now)
                else:
                    del self.peers[peer.node]
                    self._dialing.unlinked(peer.node, now)
                    yield Disconnect(peer.node, self.refusals.why(peer.node) or "it did not say Hello")

    def _judge_suspects(self, now: float) -> Iterator[Effect]:
        for peer in self._suspects.take_due(now):
            status, confirmed = self._suspects.judge(peer, now)
            if status != SUSPECT:
                if confirmed and status == DEAD:  # Otherwise the fault may be here.
                    self._flapping.lost(peer.node, now)
                    peer.counted = True
                self._end_membership(peer, status, now)
                yield Disconnect(peer.node, f"it is {status}")
            elif now >= peer.ask_at:
                yield from self._suspects.ask_about(peer, now)
        self._suspects.plan_next(now)

    def _next_wake(self) -> float:
        times = [self._heartbeats.due_at, self._silence.due_at, self._suspects.wake_at()]
        times += [self._own_view.wake_at(), self._dialing.wake_at(), self._table.wake_at()]
        return min(times)
