"""One deployment on the leader: from plan to plan without a gap (make before break). Rules, without I/O.

What is wanted (an active plan, maybe a next one) is compared with what the members report, and the orders
that are missing are given; so lost orders, restarts and new leaders need no cases of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

from edgepart.agent import room
from edgepart.agent.bindings import parent_of
from edgepart.agent.cards import read
from edgepart.agent.control import (
    FAILED,
    READY,
    Activate,
    Deployment,
    FetchModel,
    Holding,
    Latency,
    Prepare,
    Report,
    Retire,
    Standing,
    Version,
)
from edgepart.agent.drift import DriftBook
from edgepart.agent.events import ComputePlan, Effect, PlanComputed, PlanFailed, PlanKey, Send
from edgepart.agent.judging import Judge, busiest_s, measured_over_predicted, seconds_as_measured
from edgepart.agent.messages import NO_EPOCH, Epoch
from edgepart.agent.planning import Cluster, Planning, PlanningTiming, compute, nothing_new
from edgepart.agent.profiles import ProfileBook
from edgepart.agent.refining import Refining
from edgepart.planner.plan import from_bytes

COPIES = 2
"""A deployment is acknowledged when so many members have its model and its entry (or all, where there are
fewer)."""
EVERYWHERE_BYTES = 100_000_000
"""Models up to this are stored by every member: whoever leads next, or is cut off, need not fetch it first."""
RESEND_S = 3.0
"""An order whose effect no report shows is given again after this."""


@dataclass(frozen=True, slots=True)
class World:
    """What the leader sees."""

    node: str
    term: int
    cluster: Cluster
    reports: Mapping[str, Report]
    """Of the members' present processes only."""
    profiles: ProfileBook = field(default_factory=ProfileBook)
    """What segments take."""
    orders: tuple[Prepare, ...] = ()
    """All plans that serve or are on their way, of every deployment."""
    drifts: DriftBook = field(default_factory=DriftBook)
    """How far devices are from what they were calibrated to do."""

    @property
    def nodes(self) -> list[str]:
        return [member.node for member in self.cluster.members]

    def holding(self, node: str, deployment: str, epoch: Epoch) -> Holding | None:
        for holding in self.reports[node].holdings if node in self.reports else ():
            if (holding.deployment, holding.epoch) == (deployment, epoch):
                return holding
        return None

    def holders(self, model: str) -> list[str]:
        return [node for node in self.nodes if node in self.reports and model in self.reports[node].models]


@dataclass(slots=True)
class Placement:
    """A plan on its way or in use."""

    order: Prepare
    sent_at: dict[tuple[str, str], float] = field(default_factory=dict)
    """When which order last went to which node."""
    instead_of_s: float = math.inf
    """What the plan that it is to replace takes."""
    made_for: PlanKey | None = None
    """What it was computed for; None where another leader had it computed."""
    chosen: bytes = b""
    """What it was made from, where that is known."""
    note: str = ""
    """Why it is not the one that was predicted to be the best at first."""

    @property
    def epoch(self) -> Epoch:
        return self.order.epoch

    @property
    def nodes(self) -> list[str]:
        """Those with a program."""
        return [node for _, node in self.order.names]


class Cutover:
    """One deployment's active and next plan."""

    def __init__(
        self,
        deployment: Deployment,
        adopted: Prepare | None,
        timing: PlanningTiming,
        *,
        awaited: bool = False,
    ) -> None:
        """`awaited`: requests wait for its first plan, which is made in haste then."""
        self.deployment = deployment
        self.active = Placement(adopted) if adopted else None
        self.next: Placement | None = None
        self.planning = Planning(timing)
        self.refining = Refining(timing.refining)
        self.standing: Standing | None = None
        self.judge = Judge()
        self.note = ""
        """Why the plan that serves is not the one that was predicted to be the best at first."""
        self._disappointed: tuple[PlanKey, str] | None = None
        self._fetch_at: dict[str, float] = {}
        self._trouble = ""
        self._lost = awaited
        """Whether a plan that served cannot run any more, and requests wait for the next."""

    @property
    def serving(self) -> bool:
        """Whether a plan of what is wanted now is active."""
        return self.active is not None and self.active.order.version == self.deployment.version

    @property
    def refusal(self) -> tuple[str, str] | None:
        """Error and kind where nothing serves, and trying again on these devices is in vain."""
        if self.active is not None or self.next is not None:
            return None
        if self.planning.error is not None and self.planning.error.final:
            return self.planning.error.error, self.planning.error.kind
        if self._trouble and not self.planning.key_devices():
            return self._trouble, ""
        return None

    def step(self, world: World, new_epoch: Iterator[Epoch], now: float) -> list[Effect]:
        """Give the orders that are missing."""
        effects: list[Effect] = list(self._abandon(world, now))
        effects += self._promote(world)
        effects += self._store(world, now)
        effects += self._plan(world, new_epoch, now)
        for placement in (self.active, self.next):
            if placement is not None:
                effects += self._order(placement, world, now)
        effects += self._retire(world)
        effects += self._stand(world)
        return effects

    def answered(self, result: PlanComputed | PlanFailed, now: float) -> None:
        """A plan was computed, or could not be."""
        self.planning.answered(result, now)
        if isinstance(result, PlanComputed) and self.planning.is_wanted(result.key):
            self.judge.single_s = result.single_s

    def measured(self, latency: Latency) -> bool:
        """What requests take on a plan of this deployment; whether that is news."""
        return self.judge.hears(latency)

    def wake_at(self, now: float) -> float:
        resend = [
            at + RESEND_S for p in (self.active, self.next) if p is not None for at in p.sent_at.values()
        ]
        fetch = [at + RESEND_S for at in self._fetch_at.values()]
        later = min((at for at in resend + fetch if at > now), default=math.inf)
        return min(later, self.planning.wake_at(now), self.refining.wake_at(now))

    # What can no longer run

    def _abandon(self, world: World, now: float) -> Iterator[Effect]:
        for placement in (self.active, self.next):
            for node in placement.nodes if placement is not None else ():
                holding = world.holding(node, self.deployment.name, placement.epoch) if placement else None
                if holding is not None and holding.state == FAILED:
                    self.planning.avoid(node, now)
                    self._trouble = f"{node} could not load its part: {holding.error}"
        if self.active is not None and not self._can_run(self.active, world):
            self.active, self._lost = None, True
        if self.next is None:
            return
        outdated = self.next.order.version != self.deployment.version
        if outdated or not self._can_run(self.next, world):
            order = Retire(world.term, self.deployment.name, self.next.epoch)
            self.next = None
            yield from (Send(node, order) for node in world.nodes)

    def _can_run(self, placement: Placement, world: World) -> bool:
        def fine(node: str) -> bool:
            holding = world.holding(node, self.deployment.name, placement.epoch)
            return node in world.nodes and (holding is None or holding.state != FAILED)

        return all(map(fine, placement.nodes))

    def _promote(self, world: World) -> Iterator[Effect]:
        if self.next is None or self._ready(self.next, world) < len(self.next.nodes):
            return
        if self.serving and self.active is not None and self._falls_short(self.next, world):
            self.planning.settle(self.active.order.plan)
            order = Retire(world.term, self.deployment.name, self.next.epoch)
            self.next = None
            yield from (Send(node, order) for node in world.nodes)
            return
        self.active, self.next, self._trouble, self._lost = self.next, None, "", False
        self.note = self.active.note

    def _falls_short(self, placement: Placement, world: World) -> bool:
        """Whether what its segments took says that the move is not worth it."""
        if placement.instead_of_s == math.inf or not world.profiles.profiles(1):
            return False
        plan, kinds = from_bytes(placement.order.plan), {}
        for name, node in placement.order.names:
            if node in world.cluster.cards:
                device = read(world.cluster.cards[node].document).device
                device = device.drifted(self.refining.known(world.drifts, node, self.deployment.name))
                kinds[name] = (device.pace, device.threads)
        ratio = measured_over_predicted(plan, kinds, world.profiles)
        if ratio is None:
            return False
        many = self.deployment.options.objective == "throughput"
        return seconds_as_measured(plan, ratio, busiest_s(plan), many=many) >= placement.instead_of_s

    def _ready(self, placement: Placement, world: World) -> int:
        holdings = [world.holding(node, self.deployment.name, placement.epoch) for node in placement.nodes]
        return sum(holding is not None and holding.state == READY for holding in holdings)

    # The model and the plan

    def _store(self, world: World, now: float) -> Iterator[Effect]:
        """The leader needs the model to plan, and it must survive the loss of any one device."""
        model, size = self.deployment.model, self.deployment.model_bytes
        holders = world.holders(model)
        lacking = sorted((n for n in world.nodes if n not in holders), key=lambda n: (n != world.node, n))
        copies = len(world.nodes) if size <= EVERYWHERE_BYTES else min(COPIES, len(world.nodes))
        missing = copies - len(holders)
        if world.node not in holders:
            missing = max(missing, 1)
        wanted = lacking[: max(missing, 0)] if holders else []
        self._fetch_at = {node: at for node, at in self._fetch_at.items() if node in wanted}
        for node in wanted:
            if now >= self._fetch_at.get(node, -math.inf) + RESEND_S:
                self._fetch_at[node] = now
                yield Send(node, FetchModel(world.term, model, size, tuple(holders)))

    def _plan(self, world: World, new_epoch: Iterator[Epoch], now: float) -> Iterator[Effect]:
        planning, cluster = self.planning, world.cluster
        key = planning.key(cluster, self.deployment, now)
        self._refine(key, world, now)
        key = replace(key, drifts=self.refining.drifts(node for node, _, _ in key.devices))
        key = replace(key, disappointed=self._disappointment(key))
        planning.look(key, now)
        if self.next is not None or world.node not in world.holders(self.deployment.model):
            return
        current = self.active
        if current is None or current.order.version != self.deployment.version:
            if (found := planning.needed(now)) is not None and self._has_room(found, world):
                self._begin(found, world, new_epoch)
            elif planning.ask(key, now, b"", urgent=True):
                known, taken = world.profiles.profiles(), self._taken(world)
                yield compute(
                    key,
                    self.deployment,
                    cluster,
                    b"",
                    urgent=True,
                    quick=self._lost,
                    profiles=known,
                    taken=taken,
                )
            return
        if self._overtaken(current, world):
            order = replace(current.order, term=world.term, epoch=next(new_epoch))
            self.next = replace(current, order=order, sent_at={}, instead_of_s=math.inf)
            return
        plan = current.order.plan
        if (found := planning.better(plan, now)) is not None and self._has_room(found, world):
            self._begin(found, world, new_epoch)
        elif not planning.settled(plan):
            if planning.ask(key, now, plan, urgent=False):
                known, took_s = world.profiles.profiles(), self.judge.seconds(current.epoch)
                yield compute(
                    key,
                    self.deployment,
                    cluster,
                    plan,
                    urgent=False,
                    profiles=known,
                    measured_s=took_s,
                    taken=self._taken(world),
                    chosen=current.chosen,
                    refines=nothing_new(current.made_for, key),
                )
        else:
            yield from self._contingency(current, world, now)

    def _refine(self, key: PlanKey, world: World, now: float) -> None:
        """What was measured counts from the next plan on."""
        settled = self.serving and self.next is None
        serving = self.active.nodes if settled and self.active is not None else None
        nodes = [node for node, _, _ in key.devices]
        self.refining.look(world.drifts, key.deployment, key.version, nodes, serving, now)

    def _disappointment(self, key: PlanKey) -> str:
        """Digest of a plan that was slower here than one device is said to be: a reason to plan again, once."""
        active = self.active
        if self._disappointed is not None and self._disappointed[0] != key:
            if replace(self._disappointed[0], drifts=key.drifts) != key:
                self.note = ""
            self._disappointed = None
        if (
            self._disappointed is None
            and active is not None
            and self.deployment.options.strategy == "auto"
            and self.deployment.options.objective == "latency"
            and self.judge.disappoints(active.epoch, len(active.nodes))
        ):
            self._disappointed = key, sha256(active.order.plan).hexdigest()[:16]
        return self._disappointed[1] if self._disappointed else ""

    def _begin(self, found: PlanComputed, world: World, new_epoch: Iterator[Epoch]) -> None:
        nodes = {name: node for node, name, _ in found.key.devices}
        order = Prepare(
            term=world.term,
            deployment=self.deployment.name,
            version=self.deployment.version,
            epoch=next(new_epoch),
            plan=found.plan,
            names=tuple((name, nodes[name]) for name in sorted(found.names)),
            model=self.deployment.model,
            sources=tuple(world.holders(self.deployment.model)),
            latency_s=found.latency_s,
            shapes=self.deployment.options.shapes,
            weighed=self.serving and found.current_latency_s < math.inf,
            memory_bytes=found.memory_bytes,
        )
        self.next = Placement(
            order,
            instead_of_s=found.current_latency_s,
            made_for=found.key,
            chosen=found.chosen,
            note=found.note,
        )
        if not found.quick:
            self.planning.settle(found.plan)

    def _contingency(self, current: Placement, world: World, now: float) -> Iterator[ComputePlan]:
        """Nothing else is to be done: plan for the loss of one device."""
        for node in sorted(set(current.nodes) - {world.node}):
            key = self.planning.key(world.cluster, self.deployment, now, without=node)
            key = replace(key, drifts=self.refining.drifts(node for node, _, _ in key.devices))
            if self.planning.ask(key, now, b"", urgent=False):
                taken = room.taken(self._others(world))  # Its own plan does not serve any more then.
                yield compute(key, self.deployment, world.cluster, b"", urgent=False, quick=True, taken=taken)
                return

    def _others(self, world: World) -> list[Prepare]:
        return [order for order in world.orders if order.deployment != self.deployment.name]

    def _taken(self, world: World) -> dict[str, int]:
        """Memory that is not to be had for a new plan, by node: this deployment's plan serves until that is ready."""
        own = [] if self.active is None else [self.active.order]
        return room.taken([*self._others(world), *own])

    def _has_room(self, found: PlanComputed, world: World) -> bool:
        """Whether what was left when it was computed is still left; if not, it is forgotten."""
        if fine := room.fits(found, self._taken(world), world.cluster.cards):
            return fine
        self.planning.forget()
        return False

    def _overtaken(self, current: Placement, world: World) -> bool:
        """A member serves a later epoch (of a leader on the other side of a split): ours must be later
        still."""
        return any(
            holding.deployment == self.deployment.name and holding.active and holding.epoch > current.epoch
            for report in world.reports.values()
            for holding in report.holdings
        )

    # Orders

    def _order(self, placement: Placement, world: World, now: float) -> Iterator[Effect]:
        """Whoever lacks the plan prepares it; once it is active, whoever is ready switches."""
        name, epoch = self.deployment.name, placement.epoch
        for node in world.nodes:
            if node not in world.reports:
                continue
            holding = world.holding(node, name, epoch)
            order: Prepare | Activate
            if holding is None:
                sources = tuple(world.holders(self.deployment.model)) or placement.order.sources
                order = replace(placement.order, term=world.term, sources=sources)
            elif placement is self.active and holding.state == READY and not holding.active:
                order = Activate(world.term, name, epoch)
            else:
                continue
            what = (node, type(order).__name__)
            if now >= placement.sent_at.get(what, -math.inf) + RESEND_S:
                placement.sent_at[what] = now
                yield Send(node, order)
        placement.sent_at = {what: at for what, at in placement.sent_at.items() if what[0] in world.nodes}

    def _retire(self, world: World) -> Iterator[Effect]:
        """What nobody will use: prepared by a leader that is gone, or abandoned while its device was away."""
        kept = {placement.epoch: placement for placement in (self.active, self.next) if placement is not None}
        for node, report in world.reports.items():
            for holding in report.holdings:
                if holding.deployment == self.deployment.name and not holding.active:
                    placement = kept.get(holding.epoch)
                    failed = holding.state == FAILED and (placement is None or node not in placement.nodes)
                    if failed or (placement is None and self._pointless(holding)):
                        yield Send(node, Retire(world.term, holding.deployment, holding.epoch))

    def _pointless(self, holding: Holding) -> bool:
        """Older ones that are READY may still finish requests; their member drops them by itself."""
        if self.active is None:
            return False
        return holding.epoch > self.active.epoch or holding.state != READY

    # How it stands

    def _stand(self, world: World) -> Iterator[Effect]:
        standing = self._standing(world)
        if standing != self.standing:
            self.standing = standing
            yield from (Send(node, standing) for node in world.nodes)

    def _standing(self, world: World) -> Standing:
        state, text = self._state(world)
        failed = self.planning.error if state == "failed" else None
        return Standing(
            term=world.term,
            deployment=self.deployment.name,
            version=self.deployment.version,
            state=state,
            text=text,
            acknowledged=self.serving and self._safe(world),
            epoch=self.active.epoch if self.active else NO_EPOCH,
            devices=tuple(name for name, _ in self.active.order.names) if self.active else (),
            error=failed.error if failed else self._trouble,
            error_kind=failed.kind if failed else "",
            note=self.note,
        )

    def _safe(self, world: World) -> bool:
        """Model and entry survive the loss of any one device."""
        enough = min(COPIES, len(world.nodes))
        known = sum(
            _knows(report, parent_of(self.deployment.name), self.deployment.version)
            for report in world.reports.values()
        )
        return len(world.holders(self.deployment.model)) >= enough and known >= enough

    def _state(self, world: World) -> tuple[str, str]:
        holders = world.holders(self.deployment.model)
        if self.next is not None:
            ready, total = self._ready(self.next, world), len(self.next.nodes)
            return "preparing", f"preparing a plan: {ready} of {total} devices are ready"
        if self.active is not None and self.serving:
            devices = ", ".join(name for name, _ in self.active.order.names) or "the gateways alone"
            return "serving", f"serving on {devices}"
        if not holders:
            return "waiting", "no member here stores its model; start one that does"
        if world.node not in holders:
            megabytes = self.deployment.model_bytes / 1e6
            return "storing", f"copying the model ({megabytes:.1f} MB) to the leader"
        if self.planning.error is not None:
            return "failed", self.planning.error.error
        if not self.planning.key_devices():
            return "waiting", self._why_no_devices(world)
        return "planning", "computing a plan"

    def _why_no_devices(self, world: World) -> str:
        if self._trouble:
            return self._trouble
        wanted = ", ".join(self.deployment.options.devices)
        here = ", ".join(member.name for member in world.cluster.members)
        if wanted:
            return f"none of the devices it may use ({wanted}) is ready; here are {here}"
        return f"no device was measured yet; here are {here}"


def _knows(report: Report, name: str, version: Version) -> bool:
    return any(n == name and v >= version for n, v in report.versions)


def epochs(term: int) -> Iterator[Epoch]:
    """The epochs of one leadership, over all deployments."""
    number = 0
    while True:
        number += 1
        yield Epoch(term, number)
