"""Membership: which devices are members. Rules, without I/O; time is an argument.

Each pair of members holds one authenticated link. A closed link makes its device suspect at once, and
heartbeats catch silent devices. A suspect is dead when another member cannot reach it either, or when there
is nobody to ask. What this device has heard itself always counts more than what members say. (These are
SWIM's indirect probe and refutation, and Lifeguard's doubt about oneself, on a full mesh instead of gossip.)
election.py decides who leads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from edgepart.agent.cluster.membership.admit import RECALL_S, Refusals
from edgepart.agent.cluster.membership.failure_detector import DetectorTiming, FrameGaps
from edgepart.agent.cluster.membership.flapping import LossHistory
from edgepart.agent.cluster.membership.peer import OwnFacts, Peer, choose_asked, judge_suspect
from edgepart.agent.cluster.membership.redial import Redialer
from edgepart.agent.cluster.membership.roster import Roster
from edgepart.agent.cluster.membership.views import MemberViews, visible_state
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
    MemberDistrusted,
    MembersChanged,
    MessageReceived,
    PersistIncarnation,
    SendMessage,
    StarvationSeen,
)
from edgepart.agent.wire.control import (
    ALIVE,
    DEAD,
    DOORS,
    FLAPPING,
    LEAVES,
    LEAVING,
    LEFT,
    STARVES,
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
from edgepart.agent.wire.versions import understands

MAX_INCARNATION_LEAP = 1 << 20
"""The most starts and refutations that this device may have forgotten, because its state was restored from an
old copy. A member that tells of more is not believed."""


class Membership:
    """One device's view of the members."""

    def __init__(self, facts: OwnFacts, now: float, timing: DetectorTiming | None = None) -> None:
        self.timing = timing or DetectorTiming()
        self.facts = facts
        self.peers: dict[str, Peer] = {}
        self.refusals = Refusals(facts.version)
        self._starved = Starved()
        """Whether this device is starved."""
        self._dialing = Redialer(facts.node, self.timing.dial)
        self._views = MemberViews(facts.node)
        self._claim = ("", 0, 0)  # leader, its term, the largest term seen
        self._heartbeat_at = now
        self._view_at = now + self.timing.view_s
        self._view_after = now
        """No view is sent before this."""
        self._view_changed = False
        self._newest_view: View | None = None
        self._newest_view_at = now
        self._slack_s = 0.0
        self._wake_at = self._settled_at = now
        self._dirty = True
        """Whether anything changed since `_settle` last ran."""
        self._leaving = self._left = False
        self._flapping = LossHistory(self.timing.flaps)
        self._roster = Roster()
        self._roster.touch(facts.node, facts.name)
        self._members: tuple[Member, ...] | None = None
        self._alive: list[str] | None = None
        self._alive_set: frozenset[str] | None = None
        self._last_heartbeat: tuple[tuple[int, tuple[str, int, int]], Heartbeat] | None = None
        self._last_heartbeats: list[SendMessage] | None = None
        """One heartbeat to each linked member; None if they have to be made anew."""
        self._suspects: dict[str, Peer] = {}
        self._with_new_opinions: set[str] = set()
        """Suspects that some member gave an opinion of since they were last judged."""
        self._judge_at = math.inf
        """Without new opinions, no suspect has to be judged before this."""
        self._silent_at = math.inf
        """No device can have been silent for too long before this."""
        self._last_members: tuple[Member, ...] = self.members()
        self._last_sightings: tuple[Sighting, ...] = self._sightings()

    # Queries

    def members(self) -> tuple[Member, ...]:
        """The members, this device included, sorted by node id. Suspects stay members until the suspicion is
        settled."""
        if self._members is None:
            self._members = self._roster.members(self._row)
        return self._members

    def _row(self, node: str, name: str) -> Member:
        me = self.facts
        if node == me.node:
            mine = LEAVING if self._leaving else ALIVE
            return Member(node, name, me.boot, mine, me.listen, me.http, me.version, grpc=me.grpc)
        peer = self.peers[node]
        status, note = peer.standing, ""
        if status == ALIVE and self._flapping and (note := self._flapping.why(node, self._settled_at)):
            status = FLAPPING
        return peer.row(name, status, note)

    def alive(self) -> list[str]:
        """The other members that are heard and can be sent to, sorted. The caller must not change the
        list."""
        if self._alive is None:
            self._alive = sorted(node for node, peer in self.peers.items() if peer.status == ALIVE)
        return self._alive

    def is_meeting(self) -> bool:
        """Whether this device may be about to meet another one: it dials one that has neither answered nor failed to, or
        has a link over which no Hello has come yet."""
        return self._dialing.is_trying() or any(peer.status == "" for peer in self.peers.values())

    def starvation_of(self, node: str, now: float) -> Starved:
        """Whether a member, or this device, is starved of the CPU, as far as it has said."""
        if node == self.facts.node:
            return self._starved
        peer = self.peers.get(node)
        most_s = self.timing.starved_most_s
        return peer.starvation_at(now, most_s) if peer is not None else Starved()

    def remind(self) -> Iterator[Effect]:
        """Tell the other members again that this device is starved, while it is."""
        return self._starved_messages(self.alive()) if self._starved.share else iter(())

    def _starved_messages(self, nodes: Iterable[str]) -> Iterator[Effect]:
        able = (node for node in nodes if understands(self.peers[node].hello.version, STARVES))
        return (SendMessage(node, self._starved) for node in able)

    def _doors_messages(self, nodes: Iterable[str]) -> Iterator[Effect]:
        """What tells these devices where clients reach this one, once that is known."""
        if self.facts.grpc is not None:
            doors = Doors(self.facts.boot, self.facts.grpc)
            able = (node for node in nodes if understands(self.peers[node].hello.version, DOORS))
            yield from (SendMessage(node, doors) for node in able)

    def _alive_nodes(self) -> frozenset[str]:
        if self._alive_set is None:
            self._alive_set = frozenset(self.alive())
        return self._alive_set

    def _mark_changed(self, *peers: Peer) -> None:
        """Note that something changed in these devices, or in this one, that views or `members()` show."""
        self._roster.touch(self.facts.node, self.facts.name)
        for peer in peers:
            self._roster.touch(peer.node, peer.hello.name if peer.status in (ALIVE, SUSPECT) else None)
        self._dirty = True
        self._members = self._alive = self._alive_set = self._last_heartbeats = None
        self._views.outdated()

    def _set_status(self, peer: Peer, status: str, now: float) -> None:
        """Set the status of a device."""
        peer.status = status
        self._suspects.pop(peer.node, None)
        if status == SUSPECT:
            self._suspects[peer.node] = peer
        if status == "" or status == ALIVE:  # Both begin with a frame or a new link.
            soonest_s = min(self.timing.silence.least_s, self.timing.hello_s)
            self._silent_at = min(self._silent_at, now + soonest_s)
        if not self._view_changed:
            self._view_changed = True
            wait_s = self.timing.view_wait_each_s * len(self.peers)
            self._view_after = max(self._view_after, now + wait_s)
        self._mark_changed(peer)

    def broken_links(self) -> frozenset[tuple[str, str]]:
        """The pairs of members of which at least one cannot reach the other, smaller id first."""
        inside = [member.node for member in self.members()]
        return self._views.broken_links(inside, self.alive(), self._suspects)

    def seen_otherwise(self) -> bool:
        """Whether any member's view has changed since this was last asked."""
        return self._views.has_changed()

    def announce(self, leader: str, term: int, seen_term: int, now: float) -> None:
        """Set what heartbeats say about the leader. If that is news, heartbeats are sent at once."""
        if self._claim != (leader, term, seen_term):
            self._claim = (leader, term, seen_term)
            self._heartbeat_at, self._dirty = now, True

    def wake_at(self) -> float:
        """The time when `wake` has to be called; inf if never again."""
        return math.inf if self._left else self._wake_at

    def _next_wake(self) -> float:
        times = [self._heartbeat_at, self._view_at, self._silent_at, self._dialing.wake_at()]
        if self._flapping:
            times.append(self._flapping.wake_at(self._settled_at))
        if self._view_changed:
            times.append(self._view_after)
        if self._suspects:
            times.append(self._judge_at)
        return min(times)

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
                self.facts = replace(self.facts, listen=listen, http=http)
                self._mark_changed()
                effects += (
                    SendMessage(p.node, self._hello(reply=True)) for p in self.peers.values() if p.linked
                )
            case DoorsOpened(grpc):
                self.facts = replace(self.facts, grpc=grpc)
                self._mark_changed()
                effects += self._doors_messages(self.alive())
            case MessageReceived(node, message):
                effects += self._receive(node, message, now)
            case StarvationSeen(starved):
                self._starved = starved
                effects += self._starved_messages(self.alive())
            case LeaveAnnounced():
                self._leaving = True
                self._mark_changed()
                effects += (
                    SendMessage(node, Leaving(self.facts.boot)) for node in self._nodes_told_of_leaving()
                )
            case LeaveRequested():
                return self._say_goodbye()
        return effects + self._settle(now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        if self._left or (not self._dirty and now < self._wake_at):
            return []
        self._doubt_self(now)
        return self._settle(now)

    def hears(self, node: str, now: float) -> bool:
        """Note a frame that says nothing new about its sender. Returns False, and notes nothing, if more has
        to be done for the sender; `handle` does that."""
        peer = self.peers.get(node)
        if peer is None or peer.status != ALIVE or not peer.linked or self._dirty or now >= self._wake_at:
            return False
        peer.gaps.note(now - peer.heard_at)
        peer.heard_at = now
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
        if mine in view.away or not view.away.isdisjoint(self._suspects):
            return False
        unknown = view.reached - self._alive_nodes() - {mine}
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

    def _link_up(self, node: str, via: str, now: float) -> Iterator[Effect]:
        self._dialing.linked(node, via)
        self._last_heartbeats = None
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
        yield SendMessage(node, self._hello(reply=False))

    def _new(self, hello: Hello, now: float) -> Peer:
        return Peer(hello.node, hello, "", False, now, now, FrameGaps(self.timing.silence))

    def _link_down(self, node: str, now: float) -> Iterator[Effect]:
        self._dialing.unlinked(node, now)
        peer = self.peers.get(node)
        if peer is None:
            return
        peer.linked, self._last_heartbeats = False, None
        if peer.status == "":
            del self.peers[node]
        elif peer.status == ALIVE:
            yield from self._suspect(peer, now)

    def _suspect(self, peer: Peer, now: float) -> Iterator[Effect]:
        self._set_status(peer, SUSPECT, now)
        peer.since, peer.opinions = now, {}
        self._dialing.dial_soon(peer.node, now)
        yield from self._ask_about(peer, now)
        self._judge_at = min(self._judge_at, peer.ask_at, now + self._patience_s())

    def _ask_about(self, peer: Peer, now: float) -> Iterator[Effect]:
        calm = now - peer.since > 10 * self.timing.ask_s  # A member vouches for it: no hurry any more.
        peer.ask_at = now + (self.timing.heartbeat_s if calm else self.timing.ask_s)
        asked = choose_asked(self.facts.node, peer.node, self.alive(), suspects=len(self._suspects))
        peer.asks(asked)
        yield from (SendMessage(node, AskAbout(peer.node)) for node in asked)

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
                    yield SendMessage(node, self._hello(reply=False))
                    return
                if incarnation > peer.hello.incarnation:
                    peer.hello = replace(peer.hello, incarnation=incarnation)
            case Starved():
                peer.starves(message, now, self.timing)
                self._silent_at = min(self._silent_at, now + self.timing.silence.least_s)
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
                if (suspect := self.peers.get(about)) and suspect.status == SUSPECT:
                    suspect.opinions[node] = status
                    self._with_new_opinions.add(about)
        self._note_frame(peer, now)

    def _note_frame(self, peer: Peer, now: float) -> None:
        if peer.linked:
            peer.gaps.note(now - peer.heard_at)
        peer.heard_at = now
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
        greeted = hello.reply and not news
        peer.leaving &= peer.hello.boot == hello.boot
        if peer.hello.boot not in ("", hello.boot) and not peer.counted:
            self._flapping.lost(node, now)
            peer.counted = True
        moved = (peer.hello.listen, peer.hello.http) != (hello.listen, hello.http)
        peer.hello, peer.heard_at = hello, now
        if news or moved:
            self._mark_changed(peer)
        self._dialing.moved(node, hello.listen, now)
        if not peer.linked:
            if not self._dialing.knows(node):
                return
            if peer.status in (DEAD, LEFT):
                self._set_status(peer, "", now)
                peer.since = now
            self._dialing.dial_soon(node, now)
            return
        if not hello.reply:
            yield SendMessage(node, self._hello(reply=True))
        self._dialing.linked(node, "")
        peer.ask_at, peer.counted = math.inf, False
        if news:
            self._set_status(peer, ALIVE, now)
            self._flapping.back(node, now)
            peer.since, peer.gaps, peer.starved_until = now, FrameGaps(self.timing.silence), -math.inf
            self._views.forget(node)
        if greeted:  # It was told all this when it said Hello by itself.
            return
        yield SendMessage(node, self._heartbeat())
        yield SendMessage(node, self._view(now))
        if self._starved.share:
            yield from self._starved_messages([node])
        yield from self._doors_messages([node])
        if self._leaving and understands(hello.version, LEAVES):
            yield SendMessage(node, Leaving(self.facts.boot))

    def _refuse(self, node: str, peer: Peer | None, hello: Hello, now: float) -> Iterator[Effect]:
        """Answer with a Hello, so that the device sees why it is refused. The link then ends as for a device
        that never said Hello."""
        if peer is None or not peer.linked:  # Our Hello is sent when the link is up.
            self._dialing.hint(node, hello.listen, now)
            return
        self._dialing.put_off(node, now + RECALL_S, now)
        if not hello.reply:
            yield SendMessage(node, self._hello(reply=True))
        if peer.status != "":
            self._set_status(peer, "", now)
            peer.since = now
        peer.hello, peer.heard_at = replace(hello, boot=""), now

    def expel(self, node: str, now: float) -> list[Effect]:
        """End a device's membership, whatever it does."""
        peer = self.peers.get(node)
        if peer is None or peer.status not in (ALIVE, SUSPECT):
            return []
        self._end_membership(peer, LEFT, now)
        return [Disconnect(node, "it was removed from the cluster"), *self._settle(now)]

    def _receive_view(self, sender: str, view: View, now: float) -> Iterator[Effect]:
        self._views.take(sender, view.reached)
        for s in map(view.by_node.__getitem__, sorted((view.reached - self._alive_nodes()) | view.away)):
            if s.node == self.facts.node:
                if s.incarnation > self.facts.incarnation + MAX_INCARNATION_LEAP:
                    told = f"incarnation {s.incarnation} of this device, which is at {self.facts.incarnation}"
                    yield MemberDistrusted(sender, f"it reports {told}")
                    continue
                outdated = s.incarnation > self.facts.incarnation
                if outdated or (s.status in (DEAD, LEFT) and s.incarnation == self.facts.incarnation):
                    self.facts = replace(self.facts, incarnation=s.incarnation + 1)
                    self._heartbeat_at = now
                    yield PersistIncarnation(self.facts.incarnation)
                continue
            peer = self.peers.get(s.node)
            if peer is not None and peer.status == SUSPECT and s.status != ALIVE:
                peer.opinions[sender] = s.status
                self._with_new_opinions.add(peer.node)
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
        """Do not count the time that this device slept through as silence of others, and be more patient with
        them."""
        late_s = now - self._wake_at
        if late_s > self.timing.late_s:
            for peer in self.peers.values():
                peer.heard_at = min(now, peer.heard_at + late_s)
                if peer.status == SUSPECT:
                    peer.since = min(now, peer.since + late_s)
            self._slack_s = min(max(self._slack_s, late_s), self.timing.most_slack_s)

    def _patience_s(self) -> float:
        isolated = len(self._suspects) > 1 and not self.alive()
        return self.timing.isolated_s if isolated else self.timing.confirm_s

    def _settle(self, now: float) -> list[Effect]:
        """Do what is due, then tell the driver and the members what changed."""
        effects: list[Effect] = []
        if now >= min(self._silent_at, self._heartbeat_at):
            effects += self._check_silences(now)
            self._silent_at = self._next_silence(now)
        if self._with_new_opinions or (self._suspects and now >= self._judge_at):
            effects += self._judge_suspects(now)
        effects += self._dialing.wake(now)
        if now >= self._heartbeat_at:
            effects += self._heartbeats()
            self._heartbeat_at = now + self.timing.heartbeat_s
            self._slack_s *= 0.97  # 3 % per heartbeat of 0.5 s: a stall is forgotten in about a minute.
        if self._flapping and self._flapping.wake_at(self._settled_at) <= now:
            self._mark_changed(*(self.peers[m.node] for m in self.members() if m.status == FLAPPING))
        self._settled_at = now
        effects += self._tell(now)
        self._dirty = False
        self._wake_at = self._next_wake()
        return effects

    def _check_silences(self, now: float) -> Iterator[Effect]:
        for peer in list(self.peers.values()):
            if peer.status == ALIVE and now >= peer.heard_at + self._bound_s(peer, now):
                yield from self._suspect(peer, now)
            elif peer.status == "" and now >= peer.heard_at + self.timing.hello_s + self._slack_s:
                del self.peers[peer.node]
                self._dialing.unlinked(peer.node, now)
                yield Disconnect(peer.node, self.refusals.why(peer.node) or "it did not say Hello")
            elif peer.status in (DEAD, LEFT) and now - peer.since >= self.timing.forget_s:
                del self.peers[peer.node]

    def _bound_s(self, peer: Peer, now: float) -> float:
        """How long a device may be silent now, in seconds. The bound is longer if this device is starved or
        was woken late, because it then hears others late."""
        bound_s = self.timing.silence.most_s if self._starved.share else peer.bound_s(now)
        return bound_s + self._slack_s

    def _next_silence(self, now: float) -> float:
        """The time when the next device will have been silent for too long; inf if there is none."""
        slack_s, at = self._slack_s, math.inf
        for peer in self.peers.values():
            if peer.status == ALIVE:
                at = min(at, peer.heard_at + self._bound_s(peer, now))
            elif peer.status == "":
                at = min(at, peer.heard_at + self.timing.hello_s + slack_s)
        return at

    def _judge_suspects(self, now: float) -> Iterator[Effect]:
        alive = self._alive_nodes()  # Without suspects.
        said, self._with_new_opinions = self._with_new_opinions, set()
        due = now >= self._judge_at
        for peer in [peer for peer in self._suspects.values() if due or peer.node in said]:
            told = [status for node, status in peer.opinions.items() if node in alive]
            status = judge_suspect(told, out_of_patience=now >= peer.since + self._patience_s())
            if status != SUSPECT:
                if told and status == DEAD:  # Otherwise the fault may be here.
                    self._flapping.lost(peer.node, now)
                    peer.counted = True
                self._end_membership(peer, status, now)
                yield Disconnect(peer.node, f"it is {status}")
            elif now >= peer.ask_at:
                yield from self._ask_about(peer, now)
        if due:
            patience_s = self._patience_s()
            ends = [p.since + patience_s for p in self._suspects.values()]
            times = [*(p.ask_at for p in self._suspects.values()), *(end for end in ends if end > now)]
            self._judge_at = min(times, default=math.inf)

    def _end_membership(self, peer: Peer, status: str, now: float) -> None:
        self._set_status(peer, status, now)
        peer.since, peer.linked, peer.ask_at = now, False, math.inf
        self._views.forget(peer.node)
        if status == LEFT:
            peer.counted = True
            self._dialing.forget(peer.node)
        else:
            self._dialing.unlinked(peer.node, now)

    def _tell(self, now: float) -> Iterator[Effect]:
        members = self.members()
        if members is not self._last_members and members != self._last_members:
            yield MembersChanged(members)
        self._last_members = members
        due = now >= self._view_at
        if not due and not (self._view_changed and now >= self._view_after):
            return
        self._view_changed = False
        sightings = self._sightings()
        if due or visible_state(sightings) != visible_state(self._last_sightings):
            timing = self.timing
            self._last_sightings = sightings
            self._view_after = now + max(timing.view_gap_s, timing.view_gap_each_s * len(members))
            self._view_at = now + max(timing.view_s, timing.view_each_s * len(members))
            view = self._newest_view = View(sightings)
            self._newest_view_at = now
            for node in self.alive():
                yield SendMessage(node, view)

    # Helpers

    def _nodes_told_of_leaving(self) -> list[str]:
        return [node for node in self.alive() if understands(self.peers[node].hello.version, LEAVES)]

    def _say_goodbye(self) -> list[Effect]:
        self._left = True
        linked = [node for node, peer in self.peers.items() if peer.linked]
        return [SendMessage(node, Goodbye(self.facts.incarnation)) for node in linked]

    def _opinion(self, node: str, now: float) -> str:
        peer = self.peers.get(node)
        if peer is None or peer.status == "":
            return DEAD
        fresh = peer.linked and now - peer.heard_at < self.timing.fresh_s + self._slack_s
        return SUSPECT if peer.status == ALIVE and not fresh else peer.status

    def _hello(self, *, reply: bool) -> Hello:
        me = self.facts
        return Hello(me.node, me.name, me.boot, me.incarnation, me.listen, me.http, me.version, reply)

    def _heartbeat(self) -> Heartbeat:
        """The heartbeat to send; the same object as long as its contents stay the same."""
        saying = (self.facts.incarnation, self._claim)
        if self._last_heartbeat is None or self._last_heartbeat[0] != saying:
            leader, term, seen = self._claim
            self._last_heartbeat = (
                saying,
                Heartbeat(self.facts.boot, self.facts.incarnation, seen, leader, term),
            )
        return self._last_heartbeat[1]

    def _heartbeats(self) -> list[SendMessage]:
        beat = self._heartbeat()
        if self._last_heartbeats is None or (
            self._last_heartbeats and self._last_heartbeats[0].message is not beat
        ):
            told = (ALIVE, SUSPECT)
            self._last_heartbeats = [
                SendMessage(n, beat) for n, p in self.peers.items() if p.linked and p.status in told
            ]
        return self._last_heartbeats

    def _view(self, now: float) -> View:
        """The view for newcomers. Newcomers that come together get the same view, because later changes
        follow soon."""
        if self._newest_view is None or now >= self._newest_view_at + self.timing.view_wait_each_s * len(
            self.peers
        ):
            self._newest_view, self._newest_view_at = View(self._sightings()), now
        return self._newest_view

    def _sightings(self) -> tuple[Sighting, ...]:
        me = self.facts
        others = [peer.sighting() for _, peer in sorted(self.peers.items()) if peer.status]
        return (Sighting(me.node, me.incarnation, ALIVE, me.name, me.listen), *others)
