"""A simulated network of cluster cores: virtual time, seeded delays, and every fault a home network has.

A link is what TCP gives: in order, nothing lost while it is up, silent while a cable is out, closed for both
sides by either. The shell around each core is a fake: plans are made by formula, loading and copying take
virtual time. Rules that must never break are checked as the effects come (`Broken`), rules for calm times by
`settled_faults`.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from edgepart.agent.bindings import Shapes, variant_name
from edgepart.agent.control import LEAVES, REFUSED, Deployment, Standing
from edgepart.agent.core import Core
from edgepart.agent.events import (
    BindingWanted,
    CardReady,
    ComputePlan,
    Connect,
    ConnectFailed,
    DeployRequested,
    Disconnect,
    DropPlan,
    Effect,
    Event,
    LeaderChanged,
    LinkDown,
    LinkUp,
    LoadPlan,
    MembersChanged,
    ModelsStored,
    PersistDeployments,
    PersistIncarnation,
    PersistTerm,
    PlanComputed,
    PlanFailed,
    PlanLoaded,
    Received,
    Seen,
    Send,
    StandingChanged,
    StoreModel,
    SwitchOff,
    SwitchTo,
)
from edgepart.agent.membership import Facts
from edgepart.agent.messages import DeployOptions, Epoch

MODEL = "m" * 64


class Broken(AssertionError):
    """A rule that must hold at every moment did not."""


@dataclass
class Disk:
    """What survives a restart."""

    incarnation: int = 0
    term: int = 0
    deployments: tuple[Deployment, ...] = ()
    models: set[str] = field(default_factory=set)


@dataclass
class Box:
    """One device: its disk, and while it runs its core and what its shell has."""

    node: str
    disk: Disk = field(default_factory=Disk)
    core: Core | None = None
    life: int = 0
    stalled_until: float = 0.0
    plans: dict[tuple[str, Epoch], LoadPlan] = field(default_factory=dict)
    active: dict[str, Epoch] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    waiting: list[Event] = field(default_factory=list)
    woken_at: float = -1.0
    spins: int = 0


def node_id(number: int) -> str:
    return f"{number:016x}"


class SimNet:
    """`lossy`: the share of messages that vanish, come twice or come late, which TCP never does."""

    def __init__(self, count: int, seed: int = 0, *, lossy: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.lossy = lossy
        self.boxes = {node_id(n): Box(node_id(n)) for n in range(1, count + 1)}
        self.log: list[str] = []
        self.standings: dict[str, Standing] = {}
        self.acknowledged: dict[str, Deployment] = {}
        self.refused: list[tuple[str, Standing]] = []
        """Node that was told, and what."""
        self.computed = 0
        self.load_error: Callable[[str], str] = lambda node: ""
        self.plan_error: Callable[[ComputePlan], tuple[str, bool]] = lambda order: ("", False)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._changes = 0
        self._links: dict[tuple[str, str], float] = {}  # (from, to): when its last message arrives
        self._cut: set[frozenset[str]] = set()
        self._held: dict[tuple[str, str], list[Event]] = defaultdict(list)
        self._epoch_plans: dict[tuple[str, Epoch], bytes] = {}
        self._terms: dict[int, tuple[str, int]] = {}

    # Time

    def at(self, time: float, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (time, self._count, do))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, do = heapq.heappop(self._queue)
            do()
        self.now = end

    def until(self, condition: Callable[[], bool], within: float) -> float:
        """Run until it holds; how many seconds that took. It is looked at whenever some shell had something to do."""
        start, end = self.now, self.now + within
        while not condition():
            before = self._changes
            while self._changes == before:
                if not self._queue or self._queue[0][0] > end:
                    raise AssertionError(
                        "\n".join([*self.log[-40:], f"not within {within} s", self.describe()])
                    )
                self.now, _, do = heapq.heappop(self._queue)
                do()
        return self.now - start

    # What can happen to a box

    def start(self, *nodes: str) -> None:
        for node in nodes or list(self.boxes):
            self._start(self.boxes[node])

    def _start(self, box: Box) -> None:
        box.life += 1
        box.disk.incarnation += 1
        box.plans, box.active, box.waiting, box.stalled_until = {}, {}, [], 0.0
        disk, boot, name = box.disk, f"{box.node}/{box.life}", f"box{int(box.node, 16)}"
        facts = Facts(box.node, name, boot, disk.incarnation, (box.node,), "", f"0+{LEAVES}")
        box.core = Core(facts, self.now, term=disk.term, deployments=disk.deployments, models=disk.models)
        self.note(box, "starts")
        self.give(box, CardReady(f"card of {box.node}".encode()))
        for other in self.boxes:
            if other != box.node:
                found_s = self.random.uniform(0.05, 0.8)
                self._later(box, found_s, Seen(other, (other,)))

    def crash(self, node: str, *, power: bool = False, wipe: bool = False) -> None:
        """`power`: nobody is told by a closed connection. `wipe`: the disk is lost as well."""
        box = self.boxes[node]
        self.note(box, "loses power" if power else "is killed")
        box.core = None
        box.members = frozenset()
        for a, b in [pair for pair in self._links if node in pair]:
            self._close(a, b, tell=() if power else (a, b))
        if wipe:
            box.disk = Disk()

    def stall(self, node: str, seconds: float) -> None:
        box = self.boxes[node]
        box.stalled_until = self.now + seconds
        self.note(box, f"stalls {seconds} s")
        life = box.life
        self.at(self.now + seconds, lambda: self._resume(box, life))

    def _resume(self, box: Box, life: int) -> None:
        if box.life == life and box.core is not None and self.now >= box.stalled_until:
            waiting, box.waiting = box.waiting, []
            for event in waiting:
                self.give(box, event)
            self._wake(box, life)

    def partition(self, *sides: Iterable[str]) -> None:
        """Cables between the sides are out; `heal` puts them back."""
        groups = [set(side) for side in sides]
        self._cut = {frozenset((a, b)) for g in groups for h in groups if g is not h for a in g for b in h}
        self.log.append(f"{self.now:8.3f} partition {[sorted(short(n) for n in g) for g in groups]}")

    def cut(self, a: str, b: str) -> None:
        self._cut.add(frozenset((a, b)))

    def heal(self) -> None:
        self._cut = set()
        self.log.append(f"{self.now:8.3f} heal")
        held, self._held = self._held, defaultdict(list)
        for (a, b), events in held.items():
            for event in events:
                if isinstance(event, LinkDown) or (a, b) in self._links:
                    self._deliver(a, b, event)

    # Events to cores

    def give(self, box: Box, event: Event) -> None:
        if box.core is None:
            return
        if self.now < box.stalled_until:
            box.waiting.append(event)
            return
        self.obey(box, box.core.handle(event, self.now))

    def _later(self, box: Box, seconds: float, event: Event) -> None:
        life = box.life
        self.at(self.now + seconds, lambda: self.give(box, event) if box.life == life else None)

    def _wake(self, box: Box, life: int) -> None:
        if box.life == life and box.core is not None and self.now >= box.stalled_until:
            box.woken_at = -1.0
            if self.now >= box.core.wake_at():
                self.obey(box, box.core.wake(self.now))
            else:
                self._plan_wake(box)

    def _plan_wake(self, box: Box) -> None:
        assert box.core is not None
        at, life = max(box.core.wake_at(), self.now), box.life
        box.spins = box.spins + 1 if at == self.now else 0
        if box.spins > 50:
            raise Broken(f"{box.node} wants to be woken again and again at {at}")
        if at != box.woken_at:
            box.woken_at = at
            self.at(at, lambda: self._wake(box, life))

    # The fake shell

    def obey(self, box: Box, effects: list[Effect]) -> None:
        for effect in effects:
            self._obey(box, effect)
        self._plan_wake(box)

    def _obey(self, box: Box, effect: Effect) -> None:
        self._changes += not isinstance(effect, Send | Connect | Disconnect)
        match effect:
            case Send(node, message):
                self._send(box.node, node, Received(box.node, message))
            case Connect(node, _):
                self._connect(box, node)
            case Disconnect(node):
                for a, b in ((box.node, node), (node, box.node)):
                    self._close(a, b, tell=(node,))
            case PersistTerm(term):
                if term <= box.disk.term:
                    raise Broken(f"{box.node}: term {box.disk.term} -> {term}")
                box.disk.term = term
            case PersistIncarnation(incarnation):
                box.disk.incarnation = incarnation
            case PersistDeployments(entries):
                box.disk.deployments = entries
            case MembersChanged(members):
                box.members = frozenset(member.node for member in members)
                self.note(box, "sees " + " ".join(sorted(map(short, box.members))))
            case LeaderChanged(leader, term):
                me = (box.node, box.life)
                if leader == box.node and self._terms.setdefault(term, me) != me:
                    raise Broken(f"term {term} was led before")
                self.note(box, f"follows {short(leader) or 'nobody'}")
            case StandingChanged(standing):
                self._stand(box, standing)
            case _:
                self._work(box, effect)

    def _work(self, box: Box, effect: Effect) -> None:
        match effect:
            case LoadPlan():
                self._load(box, effect)
            case SwitchTo(name, epoch):
                if epoch <= box.active.get(name, Epoch(0, 0)) or (name, epoch) not in box.plans:
                    raise Broken(f"{box.node}: {name} {box.active.get(name)} -> {epoch}")
                box.active[name] = epoch
                self.note(box, f"switches to {sorted(self.devices(box, name))}")
            case SwitchOff(name):
                del box.active[name]
            case DropPlan(name, epoch):
                box.plans.pop((name, epoch), None)
                if box.active.get(name) == epoch:
                    del box.active[name]
            case StoreModel(model, _, sources):
                self._copy(box, model, sources)
            case ComputePlan():
                self._compute(box, effect)
            case _:
                raise Broken(f"unknown effect {effect}")

    def _load(self, box: Box, order: LoadPlan) -> None:
        key = (order.deployment, order.epoch)
        if self._epoch_plans.setdefault(key, order.plan) != order.plan:
            raise Broken(f"two plans of {order.deployment} have epoch {order.epoch}")
        box.plans[key] = order
        mine = box.node in dict(order.names).values()
        error = self.load_error(box.node) if mine else ""
        self._later(box, self.random.uniform(0.01, 0.4), PlanLoaded(*key, error))

    def _copy(self, box: Box, model: str, sources: tuple[str, ...]) -> None:
        def done() -> None:
            reachable = [s for s in sources if (b := self.boxes[s]).core and model in b.disk.models]
            if box.life == life and box.core and any(self._open(box.node, s) for s in reachable):
                box.disk.models.add(model)
                self._changes += 1
                self.give(box, ModelsStored(tuple(box.disk.models)))

        life = box.life
        self.at(self.now + self.random.uniform(0.05, 0.5), done)

    def _compute(self, box: Box, order: ComputePlan) -> None:
        """The more devices the faster; a plan is the list of its devices."""
        self.computed += 1
        error, final = self.plan_error(order)
        if error:
            self._later(box, 0.1, PlanFailed(order.key, error, "Infeasible", final))
            return
        names = tuple(name for _, name, _ in order.key.devices)
        before = json.loads(order.current) if order.current else []
        current_s = 1 / len(before) if before and set(before) <= set(names) else float("inf")
        plan = json.dumps(names).encode()
        result = PlanComputed(order.key, plan, names, 1 / len(names), current_s)
        self._later(box, self.random.uniform(0.05, 0.5), result)

    def _stand(self, box: Box, standing: Standing) -> None:
        if standing.state == REFUSED:
            self.refused.append((box.node, standing))
            return
        self.standings[standing.deployment] = standing
        if standing.acknowledged:
            entry = next((d for d in box.disk.deployments if d.version == standing.version), None)
            if entry is not None and entry.name == standing.deployment:
                self.acknowledged[entry.name] = entry

    # Links

    def _open(self, a: str, b: str) -> bool:
        return frozenset((a, b)) not in self._cut

    def _connect(self, box: Box, node: str) -> None:
        other = self.boxes.get(node)
        if other is None or other.core is None:
            self._later(box, 0.002, ConnectFailed(node, (node,), "refused"))
        elif not self._open(box.node, node) or self.now < other.stalled_until:
            self._later(box, 2.0, ConnectFailed(node, (node,), "no answer"))
        else:
            self._links.setdefault((box.node, node), self.now)
            self._later(box, self.random.uniform(0.001, 0.01), LinkUp(node))

    def _close(self, a: str, b: str, tell: Iterable[str]) -> None:
        if self._links.pop((a, b), None) is None:
            return
        self._held[a, b] = [e for e in self._held[a, b] if isinstance(e, LinkDown)]
        for node in tell:
            other = b if node == a else a
            self._deliver(other, node, LinkDown(other, "closed"))

    def _send(self, a: str, b: str, event: Event) -> None:
        if (a, b) not in self._links:
            return
        if self.random.random() < self.lossy:
            return
        self._deliver(a, b, event)
        if self.random.random() < self.lossy:
            self._deliver(a, b, event)

    def _deliver(self, a: str, b: str, event: Event) -> None:
        if not self._open(a, b):
            self._held[a, b].append(event)
            return
        delay = self.random.uniform(0.0002, 0.005)
        if self.random.random() < self.lossy:
            delay += 0.5  # and so comes after later ones
        at = self.now + delay if self.lossy else max(self.now + delay, self._links.get((a, b), 0.0))
        if (a, b) in self._links:
            self._links[a, b] = at
        box, life = self.boxes[b], self.boxes[b].life
        sender_life = self.boxes[a].life

        def arrive() -> None:
            closed = (a, b) not in self._links or self.boxes[a].life != sender_life
            if isinstance(event, Received) and closed:
                return
            if box.life == life:
                self.give(box, event)

        self.at(at, arrive)

    # What tests ask

    def deploy(
        self, node: str, name: str = "net", options: DeployOptions | None = None, *, model_bytes: int = 1000
    ) -> None:
        box = self.boxes[node]
        box.disk.models.add(MODEL)
        self.give(box, ModelsStored(tuple(box.disk.models)))
        self.give(box, DeployRequested(name, MODEL, model_bytes, options or DeployOptions()))

    def want(self, node: str, shapes: Shapes, seconds: float = 1e9, *, name: str = "net") -> str:
        """A gateway holds requests of these shapes for so long, and says so each second. The variant's name now."""
        box = self.boxes[node]
        order = self.core(node).follower.active(name)
        version = order.version if order else self.core(node).deployments.versions()[0][1]
        end, life = self.now + seconds, box.life

        def repeat() -> None:
            if self.now < end and box.life == life and box.core is not None:
                served = box.core.follower.active(name)
                self.give(box, BindingWanted(name, served.version if served else version, shapes))
                self.at(self.now + 1.0, repeat)

        repeat()
        return variant_name(name, version, shapes)

    def variants(self, node: str, name: str = "net") -> set[str]:
        """Those with a plan that serves there."""
        return {found for found in self.boxes[node].active if found.startswith(f"{name}@")}

    def core(self, node: str) -> Core:
        core = self.boxes[node].core
        assert core is not None
        return core

    @property
    def running(self) -> list[str]:
        return [node for node, box in self.boxes.items() if box.core is not None]

    def groups(self) -> list[set[str]]:
        """The sets of running boxes that can reach each other."""
        groups: list[set[str]] = []
        for node in self.running:
            for group in groups:
                if all(self._open(node, other) for other in group):
                    group.add(node)
                    break
            else:
                groups.append({node})
        return groups

    def devices(self, box: Box, name: str) -> set[str]:
        """Nodes that compute in the plan that is active there."""
        order = box.plans.get((name, box.active.get(name, Epoch(0, 0))))
        return {node for _, node in order.names} if order else set()

    def serves(self, name: str = "net") -> bool:
        """Each running box has an active plan, whose devices are in its group."""
        return not [fault for fault in self.settled_faults() if f" {name} " in fault]

    def settled_faults(self) -> list[str]:
        """What is wrong if by now everything should be calm."""
        faults = []
        for group in self.groups():
            leaders = {self.core(node).leader for node in group}
            if len(leaders) != 1 or not leaders <= group:
                faults.append(f"group {sorted(map(short, group))} is led by {sorted(map(short, leaders))}")
            for node in sorted(group):
                if self.boxes[node].members != group:
                    faults.append(f"{short(node)} sees {sorted(map(short, self.boxes[node].members))}")
            faults += self._unserved(group)
        return faults

    def _unserved(self, group: set[str]) -> list[str]:
        faults = []
        maps = {self.core(node).deployments.versions() for node in group}
        if len(maps) > 1:
            faults.append(f"group {sorted(map(short, group))} has {len(maps)} maps of deployments")
        stored = any(MODEL in self.boxes[node].disk.models for node in group)
        for entry in self.core(min(group)).deployments.living() if stored else ():
            plans = {self.boxes[node].active.get(entry.name) for node in group}
            devices = self.devices(self.boxes[min(group)], entry.name)
            if len(plans) != 1 or not devices or not devices <= group:
                who = sorted(map(short, group))
                faults.append(f"group {who} serves {entry.name} with {plans} on {devices}")
        return faults

    def note(self, box: Box, text: str) -> None:
        self.log.append(f"{self.now:8.3f} {short(box.node)} {text}")

    def describe(self) -> str:
        return f"t={self.now:.2f} faults={self.settled_faults()} standings={list(self.standings.values())}"


def short(node: str) -> str:
    return node.lstrip("0")
