"""A simulated cluster: boxes, the network between them, and everything that can happen to both."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import permutations, product
from typing import Any

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.own_state import OwnFacts
from edgepart.agent.cluster.state.bindings import Shapes, variant_name
from edgepart.agent.cluster.state.events import (
    RIGHT,
    BindingWanted,
    CardReady,
    ComputePlan,
    ConnectFailed,
    DeployRequested,
    DeviceSeen,
    DrainRequested,
    Effect,
    Event,
    LeaveAnnounced,
    LeaveRequested,
    LinkDown,
    LinkUp,
    ModelsStored,
    TryPlan,
)
from edgepart.agent.shutdown import MOST_S
from edgepart.agent.wire.control import (
    ARRIVALS,
    CANDIDATES,
    DOORS,
    DRAINS,
    LEAVES,
    REMOVED,
    REMOVING,
    SPARES,
    STARVES,
    VERSIONS,
    Deployment,
    Standing,
)
from edgepart.agent.wire.inference import DeployOptions, Epoch
from tests.simulation import driver
from tests.simulation.box import Box
from tests.simulation.clients import Device
from tests.simulation.disk import MODEL, Disk
from tests.simulation.invariants import GHOST_S, Invariants
from tests.simulation.ledger import Ledger
from tests.simulation.network import Arrival, Link, Network
from tests.simulation.trace import Broken, Trace, short

VERSION = f"0.1.0+traces.{LEAVES}.{DRAINS}.{STARVES}.{VERSIONS}.{ARRIVALS}.{DOORS}.{CANDIDATES}.{SPARES}"


def node_id(number: int) -> str:
    return f"{number:016x}"


class SimNet:
    """A simulated cluster in virtual time.

    `lossy` is the share of control messages that vanish, come twice or come late, which never happens over
    TCP.
    """

    def __init__(
        self,
        count: int,
        seed: int = 0,
        *,
        lossy: float = 0.0,
        trace: Trace | None = None,
        skewed: bool = False,
    ) -> None:
        """`skewed` gives every box a clock of its own."""
        self.network = Network(seed, lossy=lossy)
        self.random: random.Random = self.network.random
        self.boxes = {node_id(n): Box(node_id(n)) for n in range(1, count + 1)}
        for box in self.boxes.values() if skewed else ():
            box.offset_s, box.rate = self.random.uniform(0, 1e6), self.random.uniform(0.97, 1.03)
        self.trace = trace or Trace()
        self.invariants = Invariants()
        self.ledger = Ledger()
        self.standings: dict[str, Standing] = {}
        self.refused: list[tuple[str, Standing]] = []
        """Nodes that were told of a refused standing, with that standing."""
        self.versions: dict[str, str] = {}
        """Maps a node to its version, if that is not VERSION."""
        self.liars: set[str] = set()
        """Nodes that tests let send untrue messages."""
        self.distrusted: list[tuple[str, str, str]] = []
        """Who distrusted whom, and why."""
        self.discharged: list[str] = []
        """Nodes that learnt that they were removed, once for each start."""
        self.computed = 0
        self.changes = 0
        """Grows whenever a driver had something to do."""
        self.load_error: Callable[[str], str] = lambda node: ""
        self.tried: list[tuple[str, TryPlan]] = []
        """Nodes that tried a plan, with the order."""
        self.verdict: Callable[[TryPlan], tuple[str, str]] = lambda order: (RIGHT, "")
        self.most_try_s = 0.5
        self.full = 0.0
        """The share of steps of texts for which a device has no room among its requests."""
        self.mirrors = True
        """Whether plans of decoders may have mirrors."""
        self.alone_is_right = True
        """Whether a plan on one device counts as the model itself."""
        self.alone_fits = True
        """Whether a device has room for the whole model."""
        self.plan_error: Callable[[ComputePlan], tuple[str, bool]] = lambda order: ("", False)
        self.card_s = 0.0
        """Seconds from the start of a box until it has measured its links and tells its card."""
        self.search_s: Callable[[ComputePlan], float] = lambda order: self.random.uniform(0.05, 0.5)

    @property
    def now(self) -> float:
        return self.network.now

    @property
    def log(self) -> list[str]:
        return self.trace.lines

    @property
    def lossy(self) -> float:
        return self.network.lossy

    @property
    def acknowledged(self) -> dict[str, Deployment]:
        return self.invariants.acknowledged

    # Time

    def at(self, time: float, do: Callable[..., None], *arguments: Any) -> None:
        self.network.at(time, do, *arguments)

    def run(self, seconds: float) -> None:
        self.network.run_until(self.now + seconds)

    def until(self, condition: Callable[[], bool], within: float) -> float:
        """Run until the condition holds, and return the seconds that it took. It is checked whenever a driver
        had something to do."""
        start, end = self.now, self.now + within
        while not condition():
            before = self.changes
            while self.changes == before:
                if not self.network.queue or self.network.queue[0][0] > end:
                    raise Broken("\n".join([*self.log[-40:], f"not within {within} s", self.describe()]))
                self.network.step()
        return self.now - start

    # Events of a box

    def start(self, *nodes: str) -> None:
        """Start these boxes, or all; a running one is restarted."""
        for node in nodes or list(self.boxes):
            self._start(self.boxes[node])

    def _start(self, box: Box) -> None:
        if box.core is not None:
            self.crash(box.node)
        if any(drain.node == box.node and drain.state == REMOVED for drain in box.disk.drains):
            self.note(box, "says that it was removed, and ends")
            return
        box.life += 1
        box.disk.incarnation += 1
        box.plans, box.loaded, box.active, box.latest, box.linked = {}, set(), {}, {}, {}
        box.to_write, box.writing = {}, False
        box.stalled_until = box.busy_until = 0.0
        box.waiting.clear()
        box.fuse, box.disturbed_at, box.woken_at, box.spins = -1, self.now, -1.0, 0
        box.planned_at = -1.0
        disk, box.boot = box.disk, f"{box.node}/{box.life}"
        name, version = f"box{int(box.node, 16)}", self.versions.get(box.node, VERSION)
        facts = OwnFacts(box.node, name, box.boot, disk.incarnation, (box.node,), "", version)
        box.core = Core(
            facts,
            box.clock(self.now),
            term=disk.term,
            deployments=disk.deployments,
            models=disk.models,
            kept=disk.plans.values(),
            drains=disk.drains,
            tries=True,
        )
        box.members = frozenset({box.node})
        box.device = Device(self, box)
        self.note(box, "starts")
        card = CardReady(f"card of {box.node}".encode())
        if self.card_s:
            driver.later(self, box, self.card_s, lambda: self.give(box, card))
        else:
            self.give(box, card)
        for other in self.boxes:
            if other != box.node:
                found_s = self.random.uniform(0.05, 0.8)
                seen = DeviceSeen(other, (other,))
                driver.later(self, box, found_s, lambda seen=seen: self.give(box, seen))  # type: ignore[misc]

    def crash(self, node: str, *, power: bool = False, wipe: bool = False, flushed: bool = False) -> None:
        """Kill a box.

        `power`: connections are not closed, so that no peer is notified. `wipe`: the disk is lost as well.
        `flushed`: everything that the box sent arrives.
        """
        box = self.boxes[node]
        if box.core is not None:
            self.note(box, "loses power" if power else "is killed")
            self._off(box)
        for link in self.network.links(node):
            other = link.ends[link.ends[0] == node]
            if power:
                link.deaf = node
            else:
                self._end(link, other, flushed=flushed or self.random.random() < 0.5)
        if wipe:
            self.note(box, "loses its disk")
            self.invariants.gone(self, [node])
            self.invariants.wiped(self.now, box.disk)
            box.disk = Disk()

    def _off(self, box: Box) -> None:
        boot = box.boot
        assert box.device is not None
        box.device.died()
        box.core, box.device, box.members, box.fuse = None, None, frozenset(), -1
        box.waiting.clear()
        self.at(self.now + GHOST_S, self.invariants.ghosts, self, box.node, boot, self.now)

    def leave(self, node: str) -> None:
        """Let a box announce that it leaves, and stop."""
        box = self.boxes[node]
        self.obey(box, self.core(node).handle(LeaveRequested(), box.clock(self.now)))
        self.crash(node, flushed=True)

    def discharge(self, box: Box) -> None:
        """Let a box learn that it was removed."""
        self.discharged.append(box.node)
        self.note(box, "is discharged")
        driver.later(self, box, 0.01, partial(self.depart, box.node))

    def depart(self, node: str) -> None:
        """Let a box announce that it leaves, and stop once it is not needed."""
        self.give(self.boxes[node], LeaveAnnounced())
        self._leave_unneeded(self.boxes[node], self.now + MOST_S)

    def _leave_unneeded(self, box: Box, end: float) -> None:
        if box.core is None or box.device is None:
            return
        if self.now >= end or not (box.core.needed or box.device.busy):
            self.leave(box.node)
        else:
            driver.later(self, box, 0.05, partial(self._leave_unneeded, box, end))

    def stall(self, node: str, seconds: float) -> None:
        box = self.boxes[node]
        if self.now > box.stalled_until:
            box.stalled_since = self.now
        box.stalled_until = box.disturbed_at = self.now + seconds
        self.note(box, f"stalls {seconds:.1f} s")
        self.at(self.now + seconds, self._resume, box, box.life)

    def _resume(self, box: Box, life: int) -> None:
        if box.life != life or box.core is None or self.now < box.stalled_until:
            return
        box.woken_at = -1.0
        while box.waiting and box.life == life and box.core is not None:
            box.waiting.popleft()()
        if box.life == life:
            driver.plan_wake(self, box)

    def slow(self, node: str, lag_s: float) -> None:
        """Delay a box's handling of everything by `lag_s` from now on."""
        box = self.boxes[node]
        box.lag_s, box.disturbed_at = lag_s, float("inf") if lag_s else self.now
        self.note(box, f"is {lag_s:.2f} s late")

    def slow_disk(self, node: str, write_s: float) -> None:
        """Make writing a file take `write_s` on a box from now on."""
        box = self.boxes[node]
        box.disk.write_s = write_s
        self.note(box, f"writes a file in {write_s:.3f} s")

    def jump(self, node: str, seconds: float) -> None:
        """Move a box's clock forwards."""
        box = self.boxes[node]
        box.offset_s += seconds
        box.disturbed_at = self.now
        self.note(box, f"finds itself {seconds:.1f} s later")
        driver.plan_wake(self, box)

    def partition(self, *sides: Iterable[str]) -> None:
        """Cut the cables between the sides; `heal` restores them."""
        groups = [set(side) for side in sides]
        pairs = [pair for g, h in permutations(groups, 2) for pair in product(sorted(g), sorted(h))]
        self._disturb(node for pair in pairs for node in pair)
        self.network.heal()
        self.network.cut(pairs)
        self.trace.note(self.now, f"partition {[sorted(short(n) for n in g) for g in groups]}")

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Cut the cable between two boxes; with `one_way`, only messages from a to b are cut off."""
        self._disturb((a, b))
        self.network.cut([(a, b)] if one_way else [(a, b), (b, a)])
        self.trace.note(self.now, f"cut {short(a)} {'->' if one_way else '--'} {short(b)}")

    def _disturb(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.boxes[node].disturbed_at = float("inf")

    def heal(self) -> None:
        for box in self.boxes.values():
            if box.disturbed_at == float("inf") and not box.lag_s:
                box.disturbed_at = self.now
        self.trace.note(self.now, "heal")
        self.network.heal()

    # Events to cores

    def give(self, box: Box, event: Event) -> None:
        if box.core is None:
            return
        if self.now < box.stalled_until:
            box.waiting.append(lambda: self.give(box, event))
            return
        effects = box.core.handle(event, box.clock(self.now))
        if effects or box.core.wake_at() != box.planned_at:
            driver.obey(self, box, effects)

    def obey(self, box: Box, effects: list[Effect]) -> None:
        driver.obey(self, box, effects)

    def arrive(self, box: Box, life: int, event: Event) -> None:
        """Deliver a frame to a box, if it is still in that life."""
        if box.life != life or box.core is None:
            return
        if box.lag_s:
            box.busy_until = max(self.now + box.lag_s, box.busy_until)
            self.at(box.busy_until, self._at_last, box, life, event)
        else:
            self.give(box, event)

    def arrive_all(self, arrivals: list[Arrival], event: Event) -> None:
        """Deliver the same frame to each of these."""
        now = self.now
        for link, box, life in arrivals:
            core = box.core
            if link.over or core is None or box.life != life:
                continue
            if box.lag_s or now < box.stalled_until:
                self.arrive(box, life, event)
                continue
            effects = core.handle(event, box.offset_s + box.rate * now)
            if effects or core.wake_at() != box.planned_at:
                driver.obey(self, box, effects)

    def _at_last(self, box: Box, life: int, event: Event) -> None:
        if box.life == life:
            self.give(box, event)

    # Links

    def connect(self, box: Box, node: str) -> None:
        """Let a box dial another one."""
        other = self.boxes.get(node)
        if other is None or other.core is None:
            refused = ConnectFailed(node, (node,), "refused")
            driver.later(self, box, 0.002, lambda: self.give(box, refused))
            return
        link = self.network.link(box.node, node)
        if link is not None and not link.deaf:
            if box.linked.get(node) is link:
                driver.later(self, box, 0.001, lambda: self.give(box, LinkUp(node)))
            return
        if not self.network.reach_each_other(box.node, node) or self.now < other.stalled_until:
            self._no_answer(box, node)
            return
        if link is not None:
            self._end(link, box.node, flushed=False)
        link = self.network.make(box.node, node)
        self.at(self.now + self.random.uniform(0.02, 0.06), self._complete, link, box.life, other.life)

    def _no_answer(self, box: Box, node: str) -> None:
        failed = ConnectFailed(node, (node,), "no answer")
        driver.later(self, box, 2.0, lambda: self.give(box, failed))

    def _complete(self, link: Link, life: int, other_life: int) -> None:
        box, other = (self.boxes[end] for end in link.ends)
        alive = (
            (box.life, other.life) == (life, other_life) and box.core is not None and other.core is not None
        )
        if link.ended or not alive or not self.network.reach_each_other(*link.ends):
            self.network.end(link, {}, flushed=False)
            if box.life == life and box.core is not None:
                self._no_answer(box, other.node)
            return
        for pipe in link.pipes.values():
            self.at(
                self.now + self.random.uniform(0.0, 0.004),
                self._up,
                link,
                pipe.source,
                self.boxes[pipe.source].life,
            )

    def _up(self, link: Link, node: str, life: int) -> None:
        box, other = self.boxes[node], link.pipes[node].target
        if link.ended or box.life != life or box.core is None:
            return
        link.pipes[node].up = True

        def told() -> None:
            if old := box.linked.get(other):
                self._told_down(box, other, old)
            if box.device is not None:
                box.linked[other] = link
                box.device.found(other)
                self.give(box, LinkUp(other))

        self._soon(box, told)

    def _hear_down(self, box: Box, other: str, link: Link, life: int) -> None:
        if box.life == life and box.core is not None:
            self._soon(box, partial(self._told_down, box, other, link))

    def _told_down(self, box: Box, other: str, link: Link) -> None:
        if box.linked.get(other) is not link:
            return
        del box.linked[other]
        assert box.device is not None
        box.device.lost(other)
        self.give(box, LinkDown(other, "closed"))

    def _soon(self, box: Box, do: Callable[[], None]) -> None:
        """Do something as soon as the box is not stalled."""
        if self.now < box.stalled_until:
            box.waiting.append(do)
        else:
            do()

    def disconnect(self, box: Box, node: str) -> None:
        """Let a box give up its link."""
        if (link := self.network.link(box.node, node)) is not None:
            self._end(link, node, box.node, flushed=False)

    def _end(self, link: Link, *told: str, flushed: bool) -> None:
        tell: dict[str, Callable[[], None]] = {}
        for node in told:
            box, other = self.boxes[node], link.pipes[node].target
            tell[node] = partial(self._hear_down, box, other, link, box.life)
        self.network.end(link, tell, flushed=flushed)

    def carry(self, box: Box, node: str, channel: int, kind: str, *what: Any) -> bool:
        """Send a frame on a data channel; return whether there is a connection."""
        target = self.boxes[node]
        if node not in box.linked:
            return False
        link = self.network.link(box.node, node)

        def take() -> None:
            if target.device is not None:
                getattr(target.device, kind)(*what)

        def arrive() -> None:
            if target.core is None:
                return
            if link is not None and not link.ended and target.linked.get(box.node) is not link:
                self.at(self.now + 0.001, arrive)  # it reads once it knows the sender and could answer
            else:
                self._soon(target, take)

        return self.network.send(box.node, node, channel, arrive)

    # Questions and actions of tests

    def deploy(
        self, node: str, name: str = "net", options: DeployOptions | None = None, *, model_bytes: int = 1000
    ) -> None:
        box = self.boxes[node]
        box.disk.models.add(MODEL)
        self.give(box, ModelsStored(tuple(box.disk.models)))
        self.give(box, DeployRequested(name, MODEL, model_bytes, options or DeployOptions()))

    def wish(self, asked: str, node: str, state: str) -> None:
        """Let a user tell the box `asked` which state a device is to have."""
        core = self.core(asked)
        entry = core.draining.propose(node, f"box{int(node, 16)}", state, core.membership.members())
        if entry is not None:
            self.give(self.boxes[asked], DrainRequested(entry))

    def want(self, node: str, shapes: Shapes, seconds: float = 1e9, *, name: str = "net") -> str:
        """Let a gateway hold requests of these shapes for so long and report them each second; return the
        variant's current name."""
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
        """Return the variants with a plan that serves on that box."""
        return {found for found in self.boxes[node].active if found.startswith(f"{name}@")}

    def core(self, node: str) -> Core:
        core = self.boxes[node].core
        assert core is not None
        return core

    @property
    def running(self) -> list[str]:
        return [node for node, box in self.boxes.items() if box.core is not None]

    def removed(self) -> set[str]:
        """Return the nodes that were or are being removed, as far as any disk knows."""
        out = (REMOVED, REMOVING)
        return {drain.node for box in self.boxes.values() for drain in box.disk.drains if drain.state in out}

    def groups(self) -> list[set[str]]:
        """Return the sets of running boxes that can reach each other."""
        if self.network.whole:
            return [set(self.running)] if self.running else []
        groups: list[set[str]] = []
        for node in self.running:
            for group in groups:
                if all(self.network.reach_each_other(node, other) for other in group):
                    group.add(node)
                    break
            else:
                groups.append({node})
        return groups

    def devices(self, box: Box, name: str) -> set[str]:
        """Return the nodes that compute in the plan that is active on the box."""
        order = box.plans.get((name, box.active.get(name, Epoch(0, 0))))
        return {node for _, node in order.names} if order else set()

    def serves(self, name: str = "net") -> bool:
        """Whether each running box has an active plan whose devices are in its group."""
        return not [fault for fault in self.settled_faults() if f" {name} " in fault]

    def settled_faults(self) -> list[str]:
        """Return everything that would be wrong in a calm cluster."""
        return self.invariants.settled_faults(self)

    def note(self, box: Box, text: str | Callable[[], str]) -> None:
        self.trace.note(self.now, text, box.node)

    def describe(self) -> str:
        return f"t={self.now:.2f} faults={self.settled_faults()} standings={list(self.standings.values())}"
