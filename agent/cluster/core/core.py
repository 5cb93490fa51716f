"""The core: the cluster logic of one agent, made of membership, election, deployments, the follower and,
while this agent leads, the controller. Rules, without I/O. Events go in, effects come out; the driver
(agent/driver.py) carries out the effects in order and calls `wake` at `wake_at()`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from edgepart.agent.cluster.core.core_timing import CoreTiming
from edgepart.agent.cluster.core.device_uses import ServedPlans
from edgepart.agent.cluster.core.draining import Draining
from edgepart.agent.cluster.core.follower import Follower
from edgepart.agent.cluster.core.leadership import Leadership
from edgepart.agent.cluster.core.user_requests import UserRequest, write_request
from edgepart.agent.cluster.leader.replan_policy import ClusterView
from edgepart.agent.cluster.leader.rollout_state import LeaderView
from edgepart.agent.cluster.membership.election import Election
from edgepart.agent.cluster.membership.membership import Membership
from edgepart.agent.cluster.membership.own_state import OwnFacts
from edgepart.agent.cluster.state import candidates
from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.cluster.state.card_book import CardBook
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.drift import DriftBook
from edgepart.agent.cluster.state.earlier_releases import make_readable
from edgepart.agent.cluster.state.events import (
    BindingWanted,
    CardReady,
    DeploymentsKept,
    DrainRequested,
    DriftMeasured,
    Effect,
    Event,
    LatencyMeasured,
    LeaderChanged,
    LeaveRequested,
    Member,
    MemberDistrusted,
    MembersChanged,
    MessageReceived,
    ModelCrashed,
    ModelsStored,
    PersistDeployments,
    PersistDrains,
    PersistProfiles,
    PlanComputed,
    PlanFailed,
    PlanLoaded,
    PlanTried,
    RoundingMeasured,
    SegmentsTimed,
    SendMessage,
    SequencesContinued,
    StandingChanged,
    TermKept,
    WeightsArrived,
)
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.wire.control import (
    ALIVE,
    FLAPPING,
    LEAVES,
    LEAVING,
    REFUSED,
    Activate,
    AskAbout,
    Card,
    Deployment,
    Deployments,
    Drain,
    Drains,
    DrainStanding,
    Drift,
    FetchModel,
    Heartbeat,
    Hello,
    Latency,
    Prepare,
    Report,
    Retire,
    Standing,
    Timed,
    View,
    Want,
)
from edgepart.agent.wire.versions import understands

TOLD_TIMINGS = 512
"""The most profiles that are sent to a newcomer."""


class Core:
    """The cluster logic of one agent. `leader`, `standings` and the other attributes may be read at any time.
    Only `handle` and `wake` change anything, and neither may be called while the other runs."""

    def __init__(
        self,
        facts: OwnFacts,
        now: float,
        *,
        term: int = 0,
        deployments: Iterable[Deployment] = (),
        models: Iterable[str] = (),
        kept: Iterable[Prepare] = (),
        profiles: ProfileBook | None = None,
        drifts: DriftBook | None = None,
        timing: CoreTiming | None = None,
        drains: Iterable[Drain] = (),
        spares: int | None = None,
        card_fault: Callable[[bytes], str] = lambda document: "",
        genuine: Callable[[Drain], bool] = lambda entry: True,
        tries: bool = False,
    ) -> None:
        """`term`, `deployments`, `models`, `kept` (the plans that served last), `profiles` and `drains` are as they were
        on disk; `drifts` is filled here. `spares`: the most contingency plans that are kept ready for each deployment;
        None is one for each device that serves. `card_fault` returns what is wrong with a card's document; "" if nothing
        is. `genuine` returns whether the CA has signed a drain. `tries`: whether plans are tried before they
        serve."""
        self.timing = timing or CoreTiming()
        if spares is not None:
            self.timing = replace(self.timing, planning=replace(self.timing.planning, spares=spares))
        if tries:
            self.timing = replace(self.timing, planning=replace(self.timing.planning, tries=True))
        self.node = facts.node
        self.membership = Membership(facts, now, self.timing.membership)
        meeting = self.membership.is_meeting
        self.election = Election(facts.node, term, now, self.timing.election, facts.boot, meeting)
        self.deployments = DeploymentMap(deployments)
        self.follower = Follower(facts.boot, linger_s=self.timing.linger_s, kept=kept)
        self.follower.models = tuple(sorted(models))
        self.draining = Draining(facts.node, drains, genuine)
        self.membership.refusals.removed = self.draining.is_removed
        self.leadership = Leadership(self.follower, self.timing, now)
        self.cards = CardBook(card_fault)
        self.profiles = profiles or ProfileBook()
        self.drifts = drifts or DriftBook()
        self.standings: dict[str, Standing] = {}
        """The standing of each deployment that the leader last sent, by name."""
        self._boots: dict[str, str] = {}
        self._report_at = now
        self._sync_at = now + self.timing.sync_s
        self._kept = self.deployments.versions()  # the versions of deployments that are on disk
        self._stopped = False
        self._wake_at = now

    @property
    def leader(self) -> str:
        """The leader's node id; "" while nobody leads."""
        return self.election.leader

    @property
    def needed(self) -> bool:
        """Whether plans that serve here need this device, and other members could take over from it."""
        me = self.membership.facts.node
        others = [member for member in self.membership.members() if member.node != me]
        deaf = any(m.node == self.leader and not understands(m.version, LEAVES) for m in others)
        if deaf or all(member.status not in (ALIVE, FLAPPING) for member in others):
            return False
        serving = [o for entry in self.deployments.in_use() for o in self.follower.serving_orders(entry.name)]
        return any(node == me for order in serving for _, node in order.names)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; returns what the driver has to do, in this order. Raises UsageError if a user's
        request cannot be met (UserRequest); nothing has changed then."""
        if isinstance(event, MessageReceived) and now < self._wake_at:
            effects = self._at_once(event, now)
            if effects is not None:
                return effects
        if isinstance(event, LeaveRequested):
            effects = self.membership.handle(event, now)
            self._stopped, self._wake_at = True, math.inf
            return effects
        return self._run(self._take(event, now), now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due. An earlier call than at `wake_at()` does no harm; a later one is noticed."""
        return self._run(iter(()), now)

    def wake_at(self) -> float:
        """The time when `wake` should be called next, on the same clock as `now`."""
        return self._wake_at

    # One turn: the parts in their order

    def _run(self, first: Iterator[Effect], now: float) -> list[Effect]:
        if self._stopped:
            return []
        effects: list[Effect] = []
        to_self: deque[object] = deque()

        def out(some: Iterable[Effect]) -> None:
            for effect in some:
                if isinstance(effect, SendMessage) and effect.node == self.node:
                    to_self.append(effect.message)
                elif isinstance(effect, SendMessage):
                    effects.append(self._readable(effect))
                else:
                    effects.append(effect)

        out(first)
        if seen := self.membership.wake(now):
            out(self._watch(seen, now))
        if decided := self.election.wake(now):
            out(self._apply_election(decided, now))
        out(self.follower.wake(now))
        if now >= self._sync_at:
            out(self._regular(now))
        out(self._expel(now))
        self._report_self()
        out(self._lead(now))
        while to_self:
            while to_self:
                out(self._message(self.node, to_self.popleft(), now))
            # What this device tells itself, as a gateway or as a member, may be news to it as the leader.
            self._report_self()
            out(self._lead(now))
        out(self._report(now))
        self._wake_at = self._next()
        return effects

    def _next(self) -> float:
        times = [self.membership.wake_at(), self.election.wake_at(), self.follower.wake_at()]
        times += [self.leadership.wake_at(), self.draining.wake_at(), self._report_at, self._sync_at]
        return min(times)

    def _readable(self, effect: SendMessage) -> SendMessage:
        """The message as its receiver can read it, which may be of an earlier release."""
        peer = self.membership.peers.get(effect.node)
        return make_readable(effect, peer.hello.version if peer is not None else "")

    # Events

    def _at_once(self, event: MessageReceived, now: float) -> list[Effect] | None:
        """Take a message at once if it only asks a question, or says nothing new except that its sender is
        there, as most messages do. Returns None if more may follow; nothing was done then.

        `_take` does the same for them, and then looks at everything else. Without this shortcut 50 simulated
        members take 1.4 to 1.55 times as much of the processor (three seeds, in turns); the traces are the
        same (tests/simulation/test_simulation.py)."""
        node, message = event.node, event.message
        known: object
        match message:
            case Heartbeat():
                known = self.election.claim(node)
                if message is not known and message != known:
                    if message.boot != self._boots.get(node) or not self.membership.beats(node, message, now):
                        return None
                    seen_term = self.election.seen_term
                    decided = self.election.heard(node, message, now)
                    news = decided or self.election.seen_term != seen_term
                    return self._run(self._apply_election(decided, now), now) if news else []
            case View():
                if not self.membership.sees(node, message, now):
                    return None
                self._wake_at = min(self._wake_at, self.membership.wake_at())
                if self.membership.seen_otherwise() and self.leadership.leads:
                    self._look_soon(now)
                    return self.wake(now)
                return []
            case AskAbout():
                opinion = self.membership.opines(node, message.node, now)
                return None if opinion is None else [SendMessage(node, opinion)]
            case Report() if not self.leadership.stale:
                known = self.leadership.reports.get(node)
            case Card():
                known = self.cards.get(node)
                if known != message and message.node == node and not self.leadership.leads:
                    if not self.membership.hears(node, now):
                        return None
                    return [*self._take_card(message)]
            case Standing():
                known = self.standings.get(message.deployment)
            case Deployments(entries):
                known = message if self.deployments.has(entries) else None
            case Drains(drains) if not any(map(self.draining.is_removed, self._boots)):
                known = message if self.draining.map.has(drains) else None
            case _:
                return None
        same = message is known or message == known
        return [] if same and self.membership.hears(node, now) else None

    def _has_greeted(self, event: MessageReceived) -> bool:
        """Whether this is a member's answer to this device's Hello, and the member had said Hello by itself
        before: then it has been told all that a newcomer is told."""
        node, hello = event.node, event.message
        same = isinstance(hello, Hello) and hello.reply and self._boots.get(node) == hello.boot
        return same and node in self.membership.alive()

    def _take(self, event: Event, now: float) -> Iterator[Effect]:
        if isinstance(event, UserRequest):  # First: it may be refused, and then no other effect may get lost.
            yield from self._take_request(event, now)
        greeted = isinstance(event, MessageReceived) and self._has_greeted(event)
        yield from self._watch(self.membership.handle(event, now), now)
        if greeted:
            return
        match event:
            case MessageReceived(node, message) if node in self._boots:
                yield from self._message(node, message, now)
            case MessageReceived(node, Hello() as hello):
                yield from self.draining.farewell(node, hello.version)
            case MessageReceived(node, Drains() as drains) if node != self.node:
                yield from self._message(node, drains, now)
            case TermKept(term):
                yield from self._apply_election(self.election.kept(term, now), now)
            case DeploymentsKept(versions):
                self._kept = versions
                self.follower.changed = self.leadership.stale = True
            case CardReady(document):
                card = Card(self.node, document)
                yield from self._take_card(card)
                yield from self._tell_all(card)
            case PlanLoaded() | ModelsStored() | SequencesContinued() | WeightsArrived():
                self.follower.note(event)
            case ModelCrashed(name, model, why):
                if (entry := self.deployments.set_aside(self.node, name, model, why)) is not None:
                    yield from self._apply_deployments((entry,))
            case BindingWanted(name, version, shapes) if self.leader:
                yield SendMessage(self.leader, Want(name, version, shapes))
            case SegmentsTimed(timings):
                if news := self.profiles.learn(timings):
                    yield from self._apply_news()
                    yield from self._tell_all(Timed(news))
            case DriftMeasured(name, factor):
                told = Drift(name, factor)
                self.drifts.learn(self.node, told, now)
                self.leadership.stale = True
                yield from self._tell_all(told)
            case LatencyMeasured(name, epoch, seconds, requests) if self.leader:
                yield SendMessage(self.leader, Latency(name, epoch, seconds, requests))
            case RoundingMeasured() | PlanTried() | PlanComputed() | PlanFailed():
                members = [*self.membership.alive(), self.node]
                yield from self.leadership.take_result(event, members, now)
            case _:
                pass

    def _take_request(self, request: UserRequest, now: float) -> Iterator[Effect]:
        present = self.membership.members()
        if isinstance(request, DrainRequested):
            yield from self._apply_drains(self.draining.take_request(request, present), now)
        else:
            written = write_request(request, self.deployments, self.node, present)
            yield from self._apply_deployments(written)

    def _watch(self, effects: Iterable[Effect], now: float) -> Iterator[Effect]:
        """Pass on the effects of the membership, and what follows if the members changed."""
        for effect in effects:
            yield effect
            if isinstance(effect, MembersChanged):
                yield from self._members(effect, now)

    def _members(self, change: MembersChanged, now: float) -> Iterator[Effect]:
        self.leadership.stale = True
        others = {member.node: member.boot for member in change.members if member.node != self.node}
        for node in [n for n, boot in self._boots.items() if others.get(n) != boot]:
            self.election.restarted(node)
            self.leadership.reports.pop(node, None)
            self.drifts.forget(node)
            if node not in others:
                self.cards.forget(node)
        self._boots = others
        yield from self._apply_election(self.election.members_changed(others, now), now)

    def _apply_election(self, effects: Iterable[Effect], now: float) -> Iterator[Effect]:
        """Pass on the effects of the election, and what follows if the leader changed."""
        for effect in effects:
            yield effect
            if isinstance(effect, LeaderChanged):
                self.follower.changed = True
                if effect.leader == self.node:
                    self.leadership.begin(effect.term)
                else:
                    self.leadership.end()
        election = self.election
        self.membership.announce(election.leader, election.term, election.seen_term, now)
        yield from self._watch(self.membership.wake(now), now)  # News of the leader is sent at once.

    # Messages

    def _message(self, node: str, message: object, now: float) -> Iterator[Effect]:
        match message:
            case Hello() if node in self.membership.alive():
                if self.node in self.cards:
                    yield SendMessage(node, self.cards[self.node])
                yield SendMessage(node, Deployments(tuple(self.deployments)))
                yield from self._greet(node)
                if timings := self.profiles.profiles(TOLD_TIMINGS):
                    yield SendMessage(node, Timed(timings))
                yield from (SendMessage(node, drift) for drift in self.drifts.of(self.node))
                yield from self.leadership.retell([node])
            case Heartbeat(boot) if boot == self._boots.get(node):
                yield from self._apply_election(self.election.heard(node, message, now), now)
            case View():
                if self.membership.seen_otherwise():  # links may be broken, or whole again
                    self._look_soon(now)
            case Card() if message.node == node:
                yield from self._take_card(message)
            case Deployments(entries):
                yield from self._apply_deployments(self.deployments.merge(entries))
            case Drains(drains):
                if forged := self.draining.find_forged(drains):
                    what = f"{forged[0].name[:64]} is {forged[0].state}"
                    yield MemberDistrusted(node, f"it tells that {what}, which the cluster's CA did not sign")
                yield from self._apply_drains(
                    self.draining.merge(drains, self.membership.members(), node), now
                )
            case DrainStanding() if self._is_led(node, message.term):
                self.draining.standings[message.node] = message
            case Report(boot) if node == self.node or boot == self._boots.get(node):
                if self.leadership.take_report(node, message, self.election.seen_term):
                    self._look_soon(now)
            case Timed(timings):
                if self.profiles.learn(timings, node):
                    yield from self._apply_news()
            case Drift():
                self.drifts.learn(node, message, now)
                self.leadership.stale = True
            case Latency() | Want():
                yield from self.leadership.hear(node, message, now)
            case Prepare() | Activate() | Retire() | FetchModel() if node == self.leader:
                yield from self.follower.obey(message, self.election.seen_term, self.deployments, now)
            case Standing() if self._is_led(node, message.term):
                if is_variant(message.deployment):  # only gateways that wait for it need to know
                    if message.state == REFUSED:
                        yield StandingChanged(message)
                elif self.standings.get(message.deployment) != message:
                    self.standings[message.deployment] = message
                    yield StandingChanged(message)
            case _:
                pass

    def _apply_news(self) -> Iterator[Effect]:
        self.leadership.stale = True
        yield PersistProfiles(self.profiles.profiles())

    def _is_led(self, node: str, term: int) -> bool:
        """Whether a member that sends a message of that term is the leader whom this device itself follows,
        in a term that is not outdated."""
        return node == self.leader and term >= self.election.seen_term

    def _take_card(self, card: Card) -> Sequence[Effect]:
        before = self.cards.get(card.node)
        doubts = self.cards.take(card)
        self.leadership.stale |= self.cards.get(card.node) is not before
        return doubts

    def _apply_deployments(self, changed: tuple[Deployment, ...]) -> Iterator[Effect]:
        if not changed:
            return
        self.leadership.stale = self.follower.changed = True
        yield PersistDeployments(tuple(self.deployments))
        yield from self.follower.deployments_changed(self.deployments)
        for entry in changed:
            if entry.deleted or entry.fault:
                self.standings.pop(entry.name, None)
                self.drifts.undeployed(entry.name)
        yield from self._tell_all(Deployments(changed))

    def _apply_drains(self, effects: list[Effect], now: float) -> Iterator[Effect]:
        """Pass on the effects of a change of drains, and set the time when removed members are expelled."""
        yield from effects
        self.leadership.stale |= bool(effects)
        self.draining.plan_expulsions(self.membership.members(), now)

    def _apply_own_drains(self, effects: list[Effect], now: float) -> list[Effect]:
        """Pass on the effects of the leader's look at drains; only a removal changes the map of drains."""
        return (
            list(self._apply_drains(effects, now))
            if any(isinstance(e, PersistDrains) for e in effects)
            else effects
        )

    def _expel(self, now: float) -> Iterator[Effect]:
        for node in self.draining.take_expelled(now):
            yield from self._watch(self.membership.expel(node, now), now)

    def _greet(self, node: str) -> Iterator[Effect]:
        newcomer = next((m for m in self.membership.members() if m.node == node), None)
        if newcomer is not None:
            yield from self.draining.greet(newcomer)

    def _tell_all(self, message: Card | Deployments | Timed | Drift) -> Iterator[Effect]:
        return (SendMessage(node, message) for node in self.membership.alive())

    # Done at intervals

    def _regular(self, now: float) -> Iterator[Effect]:
        self._sync_at = now + self.timing.sync_s
        others = self.membership.alive()
        told = others if self.election.leading else [node for node in others if node == self.leader]
        for node in told:
            yield SendMessage(node, Deployments(tuple(self.deployments)))
            if self.node in self.cards:
                yield SendMessage(node, self.cards[self.node])
        yield from self.membership.remind()
        if self.leadership.leads:
            yield from self.leadership.retell(others)
            yield from self.draining.retell(self.membership.members())
        else:
            leader = [member for member in self.membership.members() if member.node == self.leader]
            yield from self.draining.remind(leader)

    def _end_candidates(self) -> Iterator[Effect]:
        """Undeploy candidates that have taken over, and those whose parents are gone. The leader does this, so that it is
        done whatever becomes of the agent that was asked."""
        for entry in candidates.over(self.deployments, self.standings):
            yield from self._apply_deployments((self.deployments.delete(self.node, entry.name),))

    def _report_self(self) -> None:
        """Take this device's own report if it leads, which needs no message."""
        known = self.node in self.leadership.reports
        if self.leadership.leads and (self.follower.changed or not known):
            self.leadership.take_own_report(self.node, self.follower.report(self._kept))

    def _report(self, now: float) -> Iterator[Effect]:
        if not self.follower.changed and now < self._report_at:
            return
        self._report_at = now + self.timing.report_s
        self.follower.changed = False
        if self.leader and not self.election.leading:
            yield SendMessage(self.leader, self.follower.report(self._kept))

    def _look_soon(self, now: float) -> None:
        self.leadership.look_soon(len(self._boots), now)

    def _lead(self, now: float) -> list[Effect]:
        controller = self.leadership.begin_look(now)
        if controller is None:
            return []
        ended = list(self._end_candidates())
        present = self.membership.members()
        world = self._view_cluster(present)
        effects = ended + controller.step(self.deployments, world, now)
        served = ServedPlans(self.deployments.list_live(), controller.orders, controller.why_not)
        effects += self._apply_own_drains(self.draining.look(world, served, present), now)
        self.leadership.end_look(now)
        return effects

    def _view_cluster(self, present: tuple[Member, ...]) -> LeaderView:
        """The cluster as this device sees it as the leader."""
        members = self.draining.mark_drained(present)
        inside = (ALIVE, LEAVING, FLAPPING)
        here = {member.node for member in present if member.status in inside} | {self.node}
        cards = {node: card for node, card in self.cards.items() if node in here}
        cluster = ClusterView(members, cards, self.cards.digests, self.membership.broken_links())
        known = self.leadership.reports
        reports = {node: known[node] for node in sorted(here & known.keys())}
        return LeaderView(self.node, self.election.term, cluster, reports, self.profiles, drifts=self.drifts)
