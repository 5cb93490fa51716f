"""Requests in a simulated cluster: the real rules of the gateway (agent/serving/request_state.py), and a
model of devices.

A request goes from device to device of its plan, one after the other, and back to its gateway. A device takes
part while it holds the plan. If it does not hold the plan, or loses a connection that the request needs, it
reports the attempt as lost, as the executor does. Whatever happens, each accepted request is answered once:
with outputs, or with a permitted error.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.cluster.state.events import LoadPlan
from edgepart.agent.serving import request_state as rules
from edgepart.agent.wire.inference import Epoch
from tests.simulation.network import DATA
from tests.simulation.trace import Broken, short

if TYPE_CHECKING:
    from tests.simulation.box import Box
    from tests.simulation.cluster import SimNet

REMEMBERED = 256
"""Attempts that a device remembers after its part of them."""
TWO_SIDES = 4
"""Minimum number of devices of a plan that has two replicas."""


@dataclass
class Ledger:
    """The results that clients saw, over all gateways."""

    accepted: dict[int, float] = field(default_factory=dict)
    """Requests in flight, and their deadlines (in the network's time, as far as the gateway's clock allows)."""
    answered: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    """Maps a request to its error, with the error's kind in front."""
    refused: int = 0
    orphaned: set[int] = field(default_factory=set)
    """Requests whose gateway, the client's own box, died."""
    replays: int = 0
    next_number: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt at a request, as devices know it."""

    gateway: str
    life: int
    attempt: int
    name: str
    epoch: Epoch
    route: tuple[str, ...]


class Device:
    """A box's part in requests: gateway and executor."""

    def __init__(self, net: SimNet, box: Box) -> None:
        self.net, self.box, self.life = net, box, box.life
        self.requests = rules.Requests()
        self._mine: dict[int, float] = {}
        self._jobs: dict[int, Job] = {}
        """Attempts that this gateway started, by number."""
        self._under_way: dict[Job, None] = {}
        self._ended: OrderedDict[Job, bool] = OrderedDict()
        """Whether a lost connection still matters to the attempt."""
        self._early: dict[tuple[str, Epoch], list[Job]] = {}
        self._woken_at = -1.0
        self._spins = 0

    # As a gateway

    def ask(self, name: str, deadline_s: float) -> int:
        """Accept a client's request and return its number."""
        ledger = self.net.ledger
        ledger.next_number += 1
        number = ledger.next_number
        now = self.box.clock(self.net.now)
        self._mine[number] = now + deadline_s
        ledger.accepted[number] = self.net.now + deadline_s
        self.handle(rules.Submitted(number, name, now + deadline_s))
        return number

    def handle(self, event: rules.Event) -> None:
        now = self.box.clock(self.net.now)
        for effect in self.requests.handle(event, now):
            self._obey(effect, now)
        self._plan_wake()

    def switched(self, order: LoadPlan) -> None:
        self.handle(rules.Activated(order.deployment, order.epoch, tuple(map(_side, routes(order)))))

    def died(self) -> None:
        """Drop the clients' requests: the box is off, and its clients cannot get an answer."""
        ledger = self.net.ledger
        for number in self._mine:
            del ledger.accepted[number]
        ledger.orphaned.update(self._mine)
        self._mine.clear()

    @property
    def busy(self) -> bool:
        """Whether its clients wait for anything."""
        return bool(self._mine)

    def _plan_wake(self) -> None:
        at = self.box.when(self.requests.wake_at())
        if at < float("inf"):
            self._spins = self._spins + 1 if at <= self.net.now else 0
            if self._spins > 50:
                raise Broken(f"requests of {self.box.node} want to be looked at again and again")
            at = max(at, self.net.now)
            if at != self._woken_at:
                self._woken_at = at
                self.net.at(at, self._wake, at)

    def _wake(self, at: float) -> None:
        if self.box.life != self.life or self.box.core is None or at != self._woken_at:
            return
        self._woken_at = -1.0
        if self.box.stalled_until > self.net.now:
            self.net.at(self.box.stalled_until, self._wake, -1.0)
            return
        now = max(
            self.box.clock(self.net.now), min(self.requests.wake_at(), self.box.clock(self.net.now) + 1e-6)
        )
        for effect in self.requests.wake(now):
            self._obey(effect, now)
        self._plan_wake()

    def _obey(self, effect: rules.Effect, now: float) -> None:
        match effect:
            case rules.Start(_, attempt, name, epoch, side):
                order = self.box.plans[name, epoch]
                job = Job(self.box.node, self.life, attempt, name, epoch, routes(order)[side])
                self._jobs[attempt] = job
                self._pass_on(job, 0)
            case rules.Answered(number, attempt, _, _, replays):
                self._close(number)
                self._jobs.pop(attempt)
                self.net.ledger.answered.add(number)
                self.net.ledger.replays += replays
            case rules.Abandon(attempt):
                self._jobs.pop(attempt, None)
            case rules.Fail(number, error, kind):
                deadline = self._close(number)
                early = kind in ("deadline", "unplanned") and now < deadline
                if early or kind in ("failed", "crashed"):
                    raise Broken(f"{short(self.box.node)}: request {number} failed ({kind}): {error}")
                self.net.ledger.failed[number] = f"{kind}: {error}"
            case rules.Refuse(number):
                self._close(number)
                self.net.ledger.refused += 1
            case rules.Forget():
                pass

    def _close(self, number: int) -> float:
        """Count the one answer of a request, and return its deadline."""
        if number not in self._mine:
            raise Broken(f"{short(self.box.node)}: request {number} is answered twice")
        self.net.ledger.accepted.pop(number)
        return self._mine.pop(number)

    # As a device

    def _pass_on(self, job: Job, step: int) -> None:
        """Pass the attempt on to the next device of its route; after the last one, to its gateway with the
        outputs."""
        target = job.route[step] if step < len(job.route) else job.gateway
        if target == self.box.node:
            self.net.at(self.net.now + 0.0001, self._here, job, step)
        elif not self.net.carry(self.box, target, DATA, "take", job, step):
            self._say_lost(job, f"no connection with {target}")

    def _here(self, job: Job, step: int) -> None:
        if self.box.life == self.life and self.box.core is not None:
            self.take(job, step)

    def take(self, job: Job, step: int) -> None:
        """Handle a frame of an attempt."""
        if step >= len(job.route):
            if job.life == self.life and self._jobs.get(job.attempt) == job:
                self.handle(rules.OutputArrived(job.attempt, 0))
            return
        key = (job.name, job.epoch)
        if job in self._ended or job in self._under_way:
            return
        if key not in self.box.plans:
            self._say_lost(job, "this device has left that epoch, or does not know it")
        elif key not in self.box.loaded:
            self._early.setdefault(key, []).append(job)
        else:
            self._under_way[job] = None
            self.net.at(self.net.now + self.net.random.uniform(0.001, 0.02), self._done, job, step)

    def _done(self, job: Job, step: int) -> None:
        if self.box.life != self.life or self.box.core is None or job not in self._under_way:
            return
        if self.box.stalled_until > self.net.now:
            self.net.at(self.box.stalled_until, self._done, job, step)
            return
        del self._under_way[job]
        self._remember(job, True)
        self._pass_on(job, step + 1)

    def _remember(self, job: Job, matters: bool) -> None:
        self._ended[job] = matters
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _say_lost(self, job: Job, error: str) -> None:
        """Report the attempt to its gateway as lost."""
        self._under_way.pop(job, None)
        self._remember(job, False)
        if job.gateway == self.box.node:
            self.failed(job, error)
        else:
            self.net.carry(self.box, job.gateway, DATA, "failed", job, error)

    def failed(self, job: Job, error: str) -> None:
        """Handle a device's report that an attempt is lost."""
        if job.life == self.life and self._jobs.get(job.attempt) == job:
            self.handle(rules.AttemptFailed(job.attempt, True, error))

    def loaded(self, name: str, epoch: Epoch) -> None:
        for job in self._early.pop((name, epoch), []):
            self.take(job, job.route.index(self.box.node))

    def left(self, name: str, epoch: Epoch) -> None:
        """Report all attempts of a dropped plan as lost."""
        jobs = [
            *self._early.pop((name, epoch), []),
            *(j for j in self._under_way if (j.name, j.epoch) == (name, epoch)),
        ]
        for job in jobs:
            self._say_lost(job, "this device has left that epoch")

    def lost(self, node: str) -> None:
        """Handle the loss of the connection with `node`: whatever was sent over it may be lost too."""
        ended = [job for job, matters in self._ended.items() if matters]
        for job in [*self._under_way, *ended]:
            if job.gateway == node:
                self._under_way.pop(job, None)
                self._remember(job, False)
            elif node in self._neighbours(job):
                self._say_lost(job, f"the connection with {node} broke")
        self.handle(rules.DeviceLost(node))

    def _neighbours(self, job: Job) -> tuple[str, ...]:
        here = job.route.index(self.box.node)
        return job.route[max(here - 1, 0) : here + 2]

    def found(self, node: str) -> None:
        self.handle(rules.DeviceFound(node))

    def undeployed(self, name: str) -> None:
        for known in {name, *(n for n in self.box.latest if parent_of(n) == name)}:
            self.handle(rules.DeploymentGone(known))


def routes(order: LoadPlan) -> list[tuple[str, ...]]:
    """Return the route of each replica: its devices in the order in which they compute."""
    nodes = [node for _, node in order.names]
    if len(nodes) < TWO_SIDES or len(json.loads(order.plan)) != len(nodes):
        return [tuple(nodes)]
    return [tuple(nodes[::2]), tuple(nodes[1::2])]


def _side(route: tuple[str, ...]) -> rules.ReplicaSide:
    return rules.ReplicaSide(frozenset(route), frozenset({0}))
