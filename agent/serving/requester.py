"""Requester: the gateway that every agent has, which takes a request's inputs and returns its outputs. A door: asyncio and
its clock.

request_state.py makes the decisions. This module checks and cuts inputs, sends frames, and puts outputs together. Methods
must be called from the event loop's thread, except those that say otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2s
from math import inf

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.cluster.state.judging import LoneRequests
from edgepart.agent.execution.outgoing import SendValues
from edgepart.agent.execution.places import home_of
from edgepart.agent.execution.schedule import check_pieces
from edgepart.agent.execution.tasks import StepKind
from edgepart.agent.serving import request_state as rules
from edgepart.agent.serving.active_plan import (
    ActivePlan,
    ActiveSide,
    activate_plan,
    assemble_output,
    check_inputs,
    cut_inputs,
    output_names,
)
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import (
    ATTEMPT,
    COPY,
    GATEWAY_LANE,
    QUEUE,
    QUEUES,
    REQUEST,
    REQUESTS,
    SEND,
    Subject,
)
from edgepart.agent.wire.inference import (
    NO_EPOCH,
    Cancel,
    EndSequence,
    Epoch,
    Failed,
    SequenceStep,
    Tensors,
)
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.errors import (
    ClusterError,
    CrashError,
    DeadlinePassed,
    EdgepartError,
    FrameError,
    RequestError,
    RunError,
    StateLost,
    Unavailable,
)
from edgepart.planner.plans.plan import Plan
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

LATENCIES_KEPT = 15
"""Number of latencies kept for each plan, of requests that ran alone: enough for a median, and soon replaced."""

FAILURES: Mapping[str, type[EdgepartError]] = {
    "request": RequestError,
    "failed": RunError,
    "crashed": CrashError,
    "state": StateLost,
    "deadline": DeadlinePassed,
    "unplanned": Unavailable,
    "full": Unavailable,
}
"""Maps kinds of rules.Fail to errors; other kinds are a ClusterError."""


@dataclass(frozen=True, slots=True)
class AnswerInfo:
    """Facts about the answer to a request."""

    epoch: Epoch
    replays: int
    """Number of attempts that were lost before the one that gave the answer."""
    strategy: str
    request: str = ""
    """The name under which agents knew the attempt that gave the answer."""
    side: int = 0
    """The replica that gave it."""
    number: int = 0
    """The number of the model's version that gave it, as in Prepare."""
    runs: int = 1
    """The number of runs that the request counts for: 0 if another one counts for the run that answered it as well."""
    waited_s: float = 0.0
    """Seconds that it waited to be run with others (request_gatherer.py)."""


@dataclass
class _Held:
    """An accepted request."""

    deployment: str
    inputs: dict[str, Value]
    outputs: tuple[str, ...]
    answer: asyncio.Future[tuple[dict[str, Value], AnswerInfo]]
    began_s: float = 0.0
    idle_s: float = 0.0
    """Time since which no attempt at the request has been under way."""
    exact: bool = False
    """Whether none of the request's pieces may be rounded on their way."""
    step: SequenceStep | None = None
    """The step of a sequence that the request is; None if it is none."""
    prefill: bool = False
    """Whether it reads many rows at once, and has no answer."""
    steps: tuple[SequenceStep, ...] = ()
    """The steps that it makes in several sequences; () if it is no such request."""
    likely: int = 0
    """How many of the most likely entries of its outputs are wanted; 0 if all are."""

    @property
    def kind(self) -> StepKind:
        return StepKind.of(self.steps, prefill=self.prefill)


@dataclass
class _Flight:
    """An attempt under way."""

    request: int
    deployment: str
    epoch: Epoch
    side: int = 0
    began_s: float = 0.0
    alone: bool = False
    """Whether no other request of this gateway has been under way meanwhile; always False for an exact request."""
    got: dict[int, Value] = field(default_factory=dict)
    """The pieces that have arrived, by slot."""
    form: ActivePlan | None = None
    """The plan of the request's kind of steps."""
    likely: int = 0
    """How many of the most likely entries of pieces devices were asked for; 0 for whole pieces."""


class Requester:
    """Runs the requests of this agent's clients."""

    def __init__(
        self,
        node: str,
        send: SendValues,
        window: rules.RequestWindow | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`node` is this agent's node id. Must be called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._recorder = recorder or Recorder()
        self._rules = rules.Requests(window or rules.RequestWindow())
        self._name = f"{node}/{secrets.token_hex(4)}"
        self._secret = secrets.token_bytes(16)
        """Key of the tags in the names of attempts."""
        self._plans: dict[tuple[str, Epoch], ActivePlan] = {}
        self._current: dict[str, ActivePlan] = {}
        self._held: dict[int, _Held] = {}
        self._flights: dict[int, _Flight] = {}
        self._node = node
        self._alone_s: dict[tuple[str, Epoch], deque[float]] = {}
        self._alone_count: Counter[tuple[str, Epoch]] = Counter()
        self._prefilled: set[str] = set()
        """Names of sequences of which devices may still make steps that have no answer. The next step waits for those, so
        that its latency says nothing of the plan."""
        self._count = 0
        self._queue: deque[rules.Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None

    async def infer(
        self,
        deployment: str,
        inputs: Mapping[str, Value],
        deadline_s: float = 60.0,
        outputs: Sequence[str] = (),
        step: SequenceStep | None = None,
        likely: int = 0,
    ) -> tuple[dict[str, Value], AnswerInfo]:
        """Run a request; returns its outputs (all, or those named) and how it was answered. Inputs must not change
        meanwhile. `step` is the step of a sequence that the request is. With `likely`, no more than so many of the most
        likely entries of the outputs are wanted: an output may then be LikelyEntries.

        Raises RequestError if the request does not fit the model; RunError if a device could not compute it, and
        CrashError if it ended two workers; Unavailable if it was not accepted and may be tried again later; DeadlinePassed
        if it was accepted but not answered in `deadline_s` seconds; ClusterError if the deployment was removed meanwhile;
        StateLost if devices do not have the states with which the step begins."""
        plan = self.active(deployment)
        if plan is None:
            raise Unavailable(f"no plan of {deployment!r} is active here; `edgepart status` says why")
        checked = check_inputs(plan.inputs, inputs)
        names = output_names(deployment, plan, outputs)
        return await self.run(deployment, checked, deadline_s, names, step=step, likely=likely)

    async def run(
        self,
        deployment: str,
        inputs: dict[str, Value],
        deadline_s: float,
        outputs: tuple[str, ...],
        *,
        exact: bool = False,
        step: SequenceStep | None = None,
        prefill: bool = False,
        steps: tuple[SequenceStep, ...] = (),
        likely: int = 0,
        again_s: float = inf,
    ) -> tuple[dict[str, Value], AnswerInfo]:
        """Run a request as `infer` does, with inputs and names that were checked (`check_inputs`, `output_names`). Waits if
        there is no plan yet. With `exact`, no piece of the request is rounded. With `prefill`, it is a step that reads many
        rows at once by the plan's `prefill`: it has no answer, and this returns when it is sent. If it fails, or the plan
        has none, the next step of the sequence finds its states lost. With `steps`, it makes a step in each of these
        sequences by the plan's `batch`, as which they have to lie side by side (place_of). `again_s` is how
        long it waits for its answer after an attempt that devices could not complete."""
        self._count += 1
        number = self._count
        now = self._loop.time()
        answer = self._loop.create_future()
        held = _Held(deployment, inputs, outputs, answer, now, now, exact, step, prefill, steps, likely)
        self._held[number] = held
        named = (one.sequence for one in (steps or filter(None, (step,))) if one.sequence)
        home = home_of(next(named, ""))
        self._handle(rules.Submitted(number, deployment, now + deadline_s, True, home, held.kind, again_s))
        try:
            return await held.answer
        finally:
            if self._held.pop(number, None) is not None:
                self._handle(rules.Withdrawn(number))

    def name_sequence(self) -> str:
        """A name for a new sequence, which no other has."""
        return f"{self._name}/{secrets.token_hex(8)}"

    def end_sequence(self, deployment: str, sequence: str) -> None:
        """Tell the devices of the deployment's plans that the sequence has no further steps."""
        self._prefilled.discard(sequence)
        for (name, epoch), active in list(self._plans.items()):
            if parent_of(name) == deployment:
                for node in sorted(active.holders):
                    self._tell(node, EndSequence(active.program or name, epoch, sequence))

    def resumes(self, deployment: str, sequence: str) -> tuple[str, Epoch, frozenset[str]] | None:
        """The deployment's plan by which the next step of the sequence would be made: the name under which devices hold it,
        its epoch and the devices that would make the step. None if there is no plan."""
        epoch = self._rules.current(deployment) or NO_EPOCH
        active = self._plans.get((deployment, epoch))
        if active is None:
            return None
        side = self._rules.home_of(deployment, home_of(sequence))
        nodes = (active.sides[n].nodes for n in (range(len(active.sides)) if side is None else (side,)))
        return active.program or deployment, epoch, frozenset().union(*nodes)

    def activate(
        self,
        deployment: str,
        epoch: Epoch,
        plan: Plan,
        nodes: Mapping[str, str],
        constants: Mapping[str, Array] | None = None,
        program: str = "",
        number: int = 0,
    ) -> None:
        """Run new requests on this plan from now on. `nodes` has the node id of each device name, and `constants` the
        values of the plan's constant outputs that are not inputs. `program` is the deployment under which its devices hold
        the plan, if it is not the one that requests name. `number` is the number of the model's version. Raises
        InternalError if the plan does not give every output."""
        if any(epoch < known for name, known in self._plans if name == deployment):
            return  # Epochs only grow; this one is of an old leader.
        active = replace(activate_plan(plan, nodes, constants or {}), program=program, number=number)
        self._current[deployment] = active
        self._plans[deployment, epoch] = active
        self._handle(rules.Activated(deployment, epoch, active.rules))

    def suspend(self, deployment: str) -> None:
        """Let the deployment's requests wait: none of its plans is current any more, and another may come."""
        self._current.pop(deployment, None)
        self._handle(rules.Suspended(deployment))

    def refuse(self, deployment: str, error: Callable[[], EdgepartError]) -> None:
        """Answer the deployment's requests with this error, which is made anew for each: there will be no plan."""
        for held in self._held.values():
            if held.deployment == deployment and not held.answer.done():
                held.answer.set_exception(error())
        self._remove(deployment)

    def remove(self, deployment: str) -> None:
        """Remove the deployment and its variants: answer their requests with an error."""
        for name in {deployment, *(n for n in self.counts() if parent_of(n) == deployment)}:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._current.pop(name, None)
        self._handle(rules.DeploymentGone(name))

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """The numbers of requests in flight and waiting, by deployment."""
        return self._rules.counts()

    def latencies(self) -> Mapping[tuple[str, Epoch], tuple[float, ...]]:
        """Latencies, in seconds, of the last requests that ran alone on this gateway, by deployment and epoch."""
        return {key: tuple(seconds) for key, seconds in self._alone_s.items()}

    def alone(self) -> Mapping[tuple[str, Epoch], LoneRequests]:
        """The latencies of requests that ran alone, their number so far and the nodes that took part, by deployment and
        epoch."""
        return {
            key: LoneRequests(
                seconds, self._alone_count[key], frozenset((self._node, *self._plans[key].nodes.values()))
            )
            for key, seconds in self.latencies().items()
            if key in self._plans
        }

    def active(self, deployment: str) -> Plan | None:
        """The plan that new requests run on."""
        known = self._current.get(deployment)
        return known.plan if known else None

    def epoch(self, deployment: str) -> Epoch | None:
        """The epoch of that plan; None if there is none."""
        return self._rules.current(deployment) if deployment in self._current else None

    def serving(self, deployment: str) -> str | None:
        """The digest of the model that new requests run on; None if there is no plan."""
        plan = self.active(deployment)
        return plan.model_digest if plan is not None else None

    # From any thread

    def deliver(self, message: Tensors | Failed, values: Sequence[Value] = (), source: str = "") -> None:
        """Take a frame for a request of this gateway, which the node `source` sent ("" if unknown). For any thread."""
        self._loop.call_soon_threadsafe(self._deliver, message, values, source)

    def lost(self, node: str) -> None:
        """Handle a broken connection with a node. For any thread."""
        self._loop.call_soon_threadsafe(self._handle, rules.DeviceLost(node))

    def found(self, node: str) -> None:
        """Handle a new connection with a node. For any thread."""
        self._loop.call_soon_threadsafe(self._handle, rules.DeviceFound(node))

    # In the loop

    def _deliver(self, message: Tensors | Failed, values: Sequence[Value], source: str) -> None:
        attempt = self._attempt_of(message.request)
        if attempt is None:
            log.info(
                "a frame for request %s, which is not of this gateway's run, is dropped", message.request
            )
            return
        flight = self._flights.get(attempt)
        if flight is None or flight.epoch != message.epoch:
            return  # The attempt was abandoned.
        active = self._plans[flight.deployment, flight.epoch]
        if message.deployment != (active.program or flight.deployment):
            return
        side = (flight.form or active).sides[flight.side]
        if source and source not in _senders(active, side, message):
            log.warning(
                "node %s sent %s of a request that is not its to answer", source, type(message).__name__
            )
            return
        if isinstance(message, Failed):
            failed = rules.AttemptFailed(attempt, message.stale, message.error, message.crashed)
            self._handle(replace(failed, lost_state=message.lost_state, no_room=message.no_room))
            return
        try:
            check_pieces(side.incoming.get(message.transfer), message.transfer, values, {}, flight.likely)
        except FrameError as error:
            self._handle(rules.AttemptFailed(attempt, False, str(error)))
            return
        flight.got.update((side.slots[message.transfer, n], value) for n, value in enumerate(values))
        self._handle(rules.OutputArrived(attempt, message.transfer))

    def _name_of(self, attempt: int) -> str:
        """The name of an attempt among agents. Its tag keeps an agent that was not told the name from guessing it."""
        tag = blake2s(str(attempt).encode(), key=self._secret, digest_size=8).hexdigest()
        return f"{self._name}/{attempt}-{tag}"

    def _attempt_of(self, request: str) -> int | None:
        """The number of the attempt with this name; None if no attempt since this gateway started can have it."""
        number = request.rpartition("/")[2].partition("-")[0]
        known = number.isascii() and number.isdecimal() and len(number) < 20
        return int(number) if known and request == self._name_of(int(number)) else None

    def _handle(self, event: rules.Event) -> None:
        """Handle an event and carry out its effects; events that occur meanwhile are queued and handled next."""
        self._queue.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._queue:
                for effect in self._rules.handle(self._queue.popleft(), self._loop.time()):
                    self._do(effect)
        finally:
            self._handling = False
        self._set_timer()

    def _wake(self) -> None:
        for effect in self._rules.wake(self._loop.time()):
            self._do(effect)
        if self._queue:
            self._handle(self._queue.popleft())
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._rules.wake_at()
        self._timer = self._loop.call_at(at, self._wake) if at != float("inf") else None

    def _do(self, effect: rules.Effect) -> None:
        match effect:
            case rules.Start():
                self._start(effect)
            case rules.Abandon():
                self._abandon(effect)
            case rules.Answered():
                self._answer(effect)
            case rules.Refuse(request, error, retry_after_s):
                self._answer_with_error(request, Unavailable(error, retry_after_s))
            case rules.Fail(request, error, kind):
                self._answer_with_error(request, FAILURES.get(kind, ClusterError)(error))
            case rules.Forget(deployment, epoch):
                del self._plans[deployment, epoch]
                self._alone_s.pop((deployment, epoch), None)
                self._alone_count.pop((deployment, epoch), None)

    def _start(self, effect: rules.Start) -> None:
        held = self._held[effect.request]
        active = self._plans[effect.deployment, effect.epoch]
        for flight in self._flights.values():
            flight.alone = False
        if held.prefill and held.step is not None:
            self._prefilled.add(held.step.sequence)
        self._flights[effect.attempt] = _Flight(
            effect.request,
            effect.deployment,
            effect.epoch,
            effect.side,
            self._loop.time(),
            not (self._flights or self._prefilled or held.exact or held.steps),
        )
        about, began_s = self._subject(effect), self._loop.time()
        if self._recorder.on:
            self._recorder.add(QUEUES, QUEUE, held.idle_s, about)
        try:
            form = self._flights[effect.attempt].form = active.form_of(held.kind)
            if held.likely and form.can_be_reduced(held.outputs, effect.side):
                self._flights[effect.attempt].likely = held.likely
            check_inputs(form.plan.inputs, held.inputs)  # The model may be another one by now.
            parcels = cut_inputs(form, held.inputs, effect.side)
            self._record_copy(about, began_s, (value for _, _, values in parcels for value in values))
            for target, transfer, values in parcels:
                message = Tensors(
                    about.deployment,
                    effect.epoch,
                    about.request,
                    transfer,
                    (),
                    held.exact,
                    held.step,
                    held.prefill,
                    held.steps,
                    self._flights[effect.attempt].likely,
                )
                self._send_input(target, message, values, about)
        except EdgepartError as error:
            stale, misfit = isinstance(error, ClusterError), isinstance(error, RequestError)
            failed = rules.AttemptFailed(effect.attempt, stale, str(error), misfit=misfit)
            self._queue.append(replace(failed, lost_state=isinstance(error, StateLost)))

    def _subject(self, effect: rules.Start | rules.Abandon | rules.Answered) -> Subject:
        program = self._plans[effect.deployment, effect.epoch].program or effect.deployment
        return Subject(program, effect.epoch, self._name_of(effect.attempt))

    def _record_copy(self, about: Subject, began_s: float, values: Iterable[Value]) -> None:
        if self._recorder.on:
            self._recorder.add(GATEWAY_LANE, COPY, began_s, about, nbytes=sum(map(value_bytes, values)))

    def _send_input(self, node: str, message: Tensors, values: Sequence[Value], about: Subject) -> None:
        if not self._recorder.on:
            self._send(node, message, values)
            return
        began_s, nbytes = self._loop.time(), sum(map(value_bytes, values))
        self._send(node, message, values)
        self._recorder.add(GATEWAY_LANE, SEND, began_s, about, "", node, message.transfer, nbytes)

    def _abandon(self, effect: rules.Abandon) -> None:
        flight = self._flights.pop(effect.attempt, None)
        if flight is not None and flight.request in self._held:
            self._held[flight.request].idle_s = self._loop.time()
            if self._recorder.on:
                self._recorder.add(QUEUES, ATTEMPT, flight.began_s, self._subject(effect), "lost")
        about = self._subject(effect)
        told = Cancel(about.deployment, effect.epoch, about.request)
        for node in sorted(self._plans[effect.deployment, effect.epoch].sides[effect.side].nodes):
            self._tell(node, told)

    def _tell(self, node: str, told: Cancel | EndSequence) -> None:
        """Tell a device what it does not need to do any more; it finds out by itself later if it cannot be told now."""
        try:
            self._send(node, told, ())
        except ClusterError as error:
            log.debug("node %s is not told %s: %s", node, told, error)

    def _answer(self, effect: rules.Answered) -> None:
        active = self._plans[effect.deployment, effect.epoch]
        flight = self._flights.pop(effect.attempt)
        if flight.alone:
            key = effect.deployment, effect.epoch
            self._alone_s.setdefault(key, deque(maxlen=LATENCIES_KEPT)).append(
                self._loop.time() - flight.began_s
            )
            self._alone_count[key] += 1
        held = self._held.pop(effect.request)
        if not held.prefill:
            self._prefilled.difference_update(one.sequence for one in (held.step, *held.steps) if one)
        if held.answer.done():
            return
        about, began_s = self._subject(effect), self._loop.time()
        try:
            outputs = {
                name: assemble_output(
                    flight.form or active, name, flight.got, held.inputs, flight.side, flight.likely
                )
                for name in held.outputs
            }
        except EdgepartError as error:
            held.answer.set_exception(error)
        else:
            strategy, number = active.plan.strategy, active.number
            info = AnswerInfo(effect.epoch, effect.replays, strategy, about.request, flight.side, number)
            held.answer.set_result((outputs, info))
        self._record_copy(about, began_s, flight.got.values())
        if self._recorder.on:
            self._recorder.add(REQUESTS, REQUEST, held.began_s, about, f"{effect.replays} attempts before")

    def _answer_with_error(self, request: int, error: EdgepartError) -> None:
        held = self._held.pop(request)
        if not held.answer.done():
            held.answer.set_exception(error)


def _senders(active: ActivePlan, side: ActiveSide, message: Tensors | Failed) -> Collection[str]:
    """Nodes from which the message may come: the transfer's source, or any device of the side for a Failed."""
    if isinstance(message, Failed):
        return side.nodes
    transfer = side.incoming.get(message.transfer)
    return side.nodes if transfer is None else (active.nodes[transfer.source],)
