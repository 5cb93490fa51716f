"""Requests in a simulated cluster: the real rules of the gateway (agent/serving/request_state.py), and a
model of devices.

A request goes from device to device of its plan, one after the other, and back to its gateway. A device takes
part while it holds the plan. If it does not hold the plan, or loses a connection that the request needs, it
reports the attempt as lost, as the executor does. Whatever happens, each accepted request is answered once:
with outputs, or with a permitted error. A request may be the step of a sequence (sequences.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.cluster.state.events import LoadPlan
from edgepart.agent.execution.places import home_of
from edgepart.agent.execution.tasks import StepKind
from edgepart.agent.serving import request_state as rules
from edgepart.agent.serving.sequence_history import SequenceHistories
from edgepart.agent.wire.inference import Epoch, SequenceResumed, SequenceStep, StateMessage
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import StateLost, Unavailable
from tests.simulation.carried import Carrier
from tests.simulation.decoder_layers import CHAT
from tests.simulation.held_plans import routes
from tests.simulation.ledger import Job, Work
from tests.simulation.network import DATA
from tests.simulation.sequences import SequenceClient, States
from tests.simulation.texts import Texts
from tests.simulation.trace import Broken, short

if TYPE_CHECKING:
    from tests.simulation.box import Box
    from tests.simulation.cluster import SimNet
    from tests.simulation.ledger import Passed

REMEMBERED = 256
"""Attempts that a device remembers after its part of them."""
SMALL = 5
"""One box of so many has no memory for the caches of several texts side by side."""
SOON = 0.7
"""The share of devices that can make steps of several texts as soon as a plan begins."""
MOST_UNTIL_BATCHES_S = 1.0
"""The longest time until the others can."""


class Asker(Protocol):
    """Whoever wants the answer of a request."""

    def answered(self, value: Any, job: Job) -> None: ...

    def failed(self, kind: str, error: str) -> None: ...


class Device:
    """A box's part in requests: gateway and executor."""

    def __init__(self, net: SimNet, box: Box) -> None:
        self.net, self.box, self.life = net, box, box.life
        self.requests = rules.Requests()
        self.states = States(fits_rows=int(box.node, 16) % SMALL != 0)
        self.histories = SequenceHistories(self._name_sequence)
        self.carrier = Carrier(self)
        self._names = 0
        self._texts: Texts | None = None
        self._steps: dict[int, tuple[Asker, Work]] = {}
        """Who wants to know of each request that makes steps, and what it asks for."""
        self._outputs: dict[int, Passed] = {}
        """What attempts gave, by number."""
        self._mine: dict[int, float] = {}
        self._jobs: dict[int, Job] = {}
        """Attempts that this gateway started, by number."""
        self._under_way: dict[Job, Passed] = {}
        """Attempts at which this device computes, and what each came with."""
        self._batches: set[tuple[str, Epoch]] = set()
        """Plans of which it has loaded the program that makes steps in several sequences."""
        self._ended: OrderedDict[Job, bool] = OrderedDict()
        """Whether a lost connection still matters to the attempt."""
        self._early: dict[tuple[str, Epoch], list[tuple[Job, Passed]]] = {}
        self._woken_at = -1.0
        self._spins = 0

    # As a gateway

    @property
    def now(self) -> float:
        """The time of the box's clock."""
        return self.box.clock(self.net.now)

    def ask(self, name: str, deadline_s: float) -> int:
        """Accept a client's request and return its number."""
        number = self._accept(deadline_s)
        self.net.ledger.names[number] = name
        self.handle(rules.Submitted(number, name, self.now + deadline_s))
        return number

    def _accept(self, deadline_s: float) -> int:
        ledger = self.net.ledger
        ledger.next_number += 1
        self._mine[ledger.next_number] = self.now + deadline_s
        ledger.accepted[ledger.next_number] = self.net.now + deadline_s
        return ledger.next_number

    def begin_sequence(self, name: str, steps: int, deadline_s: float) -> SequenceClient:
        """Let a client begin a sequence of so many steps, each of which has so much time."""
        self._names += 1
        history = self.histories.begin((name, str(self._names)), self.now)
        client = SequenceClient(self, history, steps, deadline_s)
        self.net.ledger.sequences.add(client)
        client.ask()
        return client

    def _name_sequence(self) -> str:
        return f"{self.box.node}/{self.life}/{self._names}"

    def ask_step(self, client: SequenceClient, left_s: float, step: SequenceStep, value: int) -> None:
        """Accept the step of a client's sequence."""
        self.submit(client, client.history.key[0], left_s, Work(value, (step,)))

    def submit(self, asker: Asker, name: str, left_s: float, work: Work, *, patient: bool = False) -> int:
        """Accept a request that makes steps of sequences, and return its number. `asker` is told of its end."""
        number = self._accept(left_s)
        self._steps[number] = asker, work
        home = home_of(next((one.sequence for one in work.steps if one.sequence), ""))
        self.handle(rules.Submitted(number, name, self.now + left_s, patient, home, work.kind))
        return number

    def withdraw(self, number: int) -> None:
        """Forget a request whose client does not want the answer any more."""
        if number in self._mine:
            self._close(number)
            del self._steps[number]
            self.handle(rules.Withdrawn(number))

    @property
    def texts(self) -> Texts:
        """The texts that clients of this gateway let grow."""
        if self._texts is None:
            self._texts = Texts(self)
        return self._texts

    def end_sequence(self, client: SequenceClient) -> None:
        """End a sequence, and tell the devices so."""
        self.histories.end(client.history.key)
        self.net.ledger.sequences.discard(client)
        self.tell_ended(client.history.key[0], client.history.name)

    def tell_ended(self, deployment: str, sequence: str) -> None:
        """Tell the devices that a sequence has no further steps."""
        plans = [order for (name, _), order in self.box.plans.items() if name == deployment]
        for node in sorted({node for order in plans for _, node in order.names}):
            self._tell(node, "sequence_ended", sequence)

    def later(self, seconds: float, do: Callable[..., object], *arguments: object) -> None:
        """Do something for a client after that time, if the box is still in the same life and not stalled."""
        self.net.at(self.net.now + seconds, self._due, do, arguments)

    def _due(self, do: Callable[..., object], arguments: tuple[object, ...]) -> None:
        if self.box.life != self.life or self.box.core is None:
            return
        if self.box.stalled_until > self.net.now:
            self.net.at(self.box.stalled_until, self._due, do, arguments)
        else:
            do(*arguments)

    def handle(self, event: rules.Event) -> None:
        now = self.box.clock(self.net.now)
        for effect in self.requests.handle(event, now):
            self._obey(effect, now)
        self._plan_wake()

    def switched(self, order: LoadPlan) -> None:
        self.handle(rules.Activated(order.deployment, order.epoch, tuple(map(_side, routes(order)))))
        if order.deployment == CHAT:
            soon = self.net.random.random() < SOON
            after_s = 0.0 if soon else self.net.random.uniform(0.0, MOST_UNTIL_BATCHES_S)
            self.later(after_s, self._add_batch, (CHAT, order.epoch))

    def _add_batch(self, key: tuple[str, Epoch]) -> None:
        if key in self.box.loaded:
            self._batches.add(key)

    def died(self) -> None:
        """Drop the clients' requests: the box is off, and its clients cannot get an answer."""
        ledger = self.net.ledger
        for number in self._mine:
            del ledger.accepted[number]
        ledger.orphaned.update(self._mine)
        self._mine.clear()
        ledger.sequences = {client for client in ledger.sequences if client.device is not self}
        ledger.texts = {client for client in ledger.texts if client.device is not self}
        if self._texts is not None:
            self._texts.loop.close()

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
            case rules.Start(number, attempt, name, epoch, side):
                order = self.box.plans[name, epoch]
                work = self._steps[number][1] if number in self._steps else Work(0, ())
                route = routes(order)[side]
                job = Job(self.box.node, self.life, attempt, name, epoch, route, work.kind, work.steps, side)
                self._jobs[attempt] = job
                self._pass_on(job, 0, work.value)
            case rules.Answered(number, attempt, _, _, replays):
                self._close(number)
                job = self._jobs.pop(attempt)
                self.net.ledger.answered.add(number)
                self.net.ledger.replays += replays
                self._tell_client(number, "answered", self._outputs.pop(attempt, None), job)
            case rules.Abandon(attempt):
                self._outputs.pop(attempt, None)
                if (abandoned := self._jobs.pop(attempt, None)) is not None:
                    for node in sorted(abandoned.route):
                        self._tell(node, "cancel", abandoned)
            case rules.Fail(number, error, kind):
                deadline = self._close(number)
                early = kind in ("deadline", "unplanned") and now < deadline
                if early or kind in ("failed", "crashed") or (kind == "state" and number not in self._steps):
                    raise Broken(f"{short(self.box.node)}: request {number} failed ({kind}): {error}")
                self.net.ledger.failed[number] = f"{kind}: {error}"
                self._tell_client(number, "failed", kind, error)
            case rules.Refuse(number, error):
                self._close(number)
                self.net.ledger.refused += 1
                self._tell_client(number, "failed", "refused", error)
            case rules.Forget():
                pass

    def _tell_client(self, number: int, what: str, *arguments: object) -> None:
        """Tell the client of a step, if the request is one, once all effects are carried out."""
        if (found := self._steps.pop(number, None)) is not None:
            self.later(0.0, getattr(found[0], what), *arguments)

    def _tell(self, node: str, what: str, about: object) -> None:
        """Tell a device something that it finds out by itself later if it cannot be told now."""
        if node == self.box.node:
            getattr(self, what)(about)
        else:
            self.net.carry(self.box, node, DATA, what, about)

    def _close(self, number: int) -> float:
        """Count the one answer of a request, and return its deadline."""
        if number not in self._mine:
            raise Broken(f"{short(self.box.node)}: request {number} is answered twice")
        self.net.ledger.accepted.pop(number)
        return self._mine.pop(number)

    # As a device

    def _pass_on(self, job: Job, hop: int, value: Passed) -> None:
        """Pass the attempt on to the next device of its route; after the last one, to its gateway with the
        outputs, if there are any."""
        if hop == len(job.route) and job.kind is StepKind.PREFILL:
            return
        target = job.route[hop] if hop < len(job.route) else job.gateway
        if target == self.box.node:
            self.net.at(self.net.now + 0.0001, self._here, job, hop, value)
        elif not self.net.carry(self.box, target, DATA, "take", job, hop, value):
            self._say_lost(job, f"no connection with {target}")

    def _here(self, job: Job, hop: int, value: Passed) -> None:
        if self.box.life == self.life and self.box.core is not None:
            self.take(job, hop, value)

    def take(self, job: Job, hop: int, value: Passed) -> None:
        """Handle a frame of an attempt."""
        if hop >= len(job.route):
            if job.life == self.life and self._jobs.get(job.attempt) == job:
                self._outputs[job.attempt] = value
                self.handle(rules.OutputArrived(job.attempt, 0))
            return
        key = (job.name, job.epoch)
        if job in self._ended or job in self._under_way:
            return
        if key not in self.box.plans:
            self._say_lost(job, "this device has left that epoch, or does not know it")
        elif key not in self.box.loaded:
            self._early.setdefault(key, []).append((job, value))
        elif job.kind is StepKind.BATCH and key not in self._batches:
            self._say_lost(job, "this device makes no batch steps by this plan now", lost_state=True)
        elif job.name == CHAT and self.net.random.random() < self.net.full:
            self._say_lost(job, "this device has too many requests under way")
        else:
            self._under_way[job] = value
            begins_s, took_s = self.net.now, self.net.random.uniform(0.001, 0.02)
            if job.steps:
                begins_s = max(begins_s, self.states.free_s)
                self.states.free_s = begins_s + took_s
                self.net.at(begins_s, self._begin, job, hop)
            self.net.at(begins_s + took_s, self._done, job, hop)

    def _computes(self, job: Job, hop: int, do: Callable[[Job, int], None]) -> bool:
        """Whether the device goes on with that attempt now; it does so later if it is stalled."""
        if self.box.life != self.life or self.box.core is None or job not in self._under_way:
            return False
        if self.box.stalled_until > self.net.now:
            self.net.at(self.box.stalled_until, do, job, hop)
            return False
        return True

    def _begin(self, job: Job, hop: int) -> None:
        """Begin with a step of a sequence, if its states are here."""
        if not self._computes(job, hop, self._begin):
            return
        try:
            self.states.begin(job, hop, self.now)
        except (StateLost, Unavailable) as error:
            no_room = isinstance(error, Unavailable)
            self._say_lost(job, str(error), lost_state=isinstance(error, StateLost), no_room=no_room)

    def _done(self, job: Job, hop: int) -> None:
        if not self._computes(job, hop, self._done):
            return
        value = self._under_way.pop(job)
        if job.steps:
            value = self.states.finish(job, hop, value, self.now)
            self.net.ledger.blocks += job.kind is StepKind.PREFILL
        self._remember(job, True)
        self._pass_on(job, hop + 1, value)

    def _remember(self, job: Job, matters: bool) -> None:
        self._ended[job] = matters
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _end(self, job: Job) -> None:
        """End an attempt that is not finished here; what comes of it later is ignored."""
        value = self._under_way.pop(job, None)
        if value is not None:
            hop, computed = job.route.index(self.box.node), self.net.random.random() < 0.5
            self.states.drop(job, hop, value, computed=computed)
        self._remember(job, False)

    def _say_lost(self, job: Job, error: str, *, lost_state: bool = False, no_room: bool = False) -> None:
        """Report the attempt to its gateway as lost."""
        self._end(job)
        if job.gateway == self.box.node:
            self.failed(job, error, lost_state, no_room)
        else:
            self.net.carry(self.box, job.gateway, DATA, "failed", job, error, lost_state, no_room)

    def failed(self, job: Job, error: str, lost_state: bool, no_room: bool) -> None:
        """Handle a device's report that an attempt is lost."""
        if job.life == self.life and self._jobs.get(job.attempt) == job:
            self.handle(rules.AttemptFailed(job.attempt, True, error, lost_state=lost_state, no_room=no_room))

    def cancel(self, job: Job) -> None:
        """Forget an attempt, which its gateway has abandoned."""
        self._end(job)

    def sequence_ended(self, sequence: str) -> None:
        """Drop what is kept of a sequence, and its steps under way."""
        for job in list(self._under_way):
            if any(step.sequence == sequence for step in job.steps):
                self._end(job)
        self.states.kept.end(sequence)
        self.carrier.sequence_ended(sequence)

    def states_arrived(self, message: StateMessage, values: Sequence[Value], source: str) -> None:
        """Hand a message about states to this device's gateway or to its carrier."""
        if isinstance(message, SequenceResumed):
            self.texts.resumptions.deliver(message, source)
        else:
            self.carrier.arrived(message, values, source)

    def loaded(self, name: str, epoch: Epoch) -> None:
        self.carrier.loaded((name, epoch))
        for job, value in self._early.pop((name, epoch), []):
            self.take(job, job.route.index(self.box.node), value)

    def left(self, name: str, epoch: Epoch) -> None:
        """Report all attempts of a dropped plan as lost."""
        jobs = [
            *(job for job, _ in self._early.pop((name, epoch), [])),
            *(j for j in self._under_way if (j.name, j.epoch) == (name, epoch)),
        ]
        for job in jobs:
            self._say_lost(job, "this device has left that epoch")
        self._batches.discard((name, epoch))
        self.carrier.left((name, epoch))
        self.states.kept.retire(name, epoch)

    def lost(self, node: str) -> None:
        """Handle the loss of the connection with `node`: whatever was sent over it may be lost too."""
        self.states.kept.lose(node)
        ended = [job for job, matters in self._ended.items() if matters]
        for job in [*self._under_way, *ended]:
            if job.gateway == node:
                self._end(job)
            elif node in self._neighbours(job):
                self._say_lost(job, f"the connection with {node} broke")
        self.handle(rules.DeviceLost(node))
        self.carrier.lost(node)
        if self._texts is not None:
            self._texts.resumptions.lost(node)

    def _neighbours(self, job: Job) -> tuple[str, ...]:
        here = job.route.index(self.box.node)
        return job.route[max(here - 1, 0) : here + 2]

    def found(self, node: str) -> None:
        self.handle(rules.DeviceFound(node))
        self.carrier.found(node)

    def undeployed(self, name: str) -> None:
        for known in {name, *(n for n in self.box.latest if parent_of(n) == name)}:
            self.handle(rules.DeploymentGone(known))


def _side(route: tuple[str, ...]) -> rules.ReplicaSide:
    return rules.ReplicaSide(frozenset(route), frozenset({0}), batch_outputs=frozenset({0}))
