"""Requester: the gateway that every agent has: takes inputs, gives outputs. A door: asyncio and its clock.

What is decided is decided in request_state.py; here inputs are checked and cut, frames sent, and outputs put
together. All methods are for the event loop's thread, but those that say otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2s

import numpy as np

from edgepart.agent.cluster.state.bindings import describe, parent_of
from edgepart.agent.cluster.state.judging import Alone
from edgepart.agent.execution.copies import CopyPlan, recipe
from edgepart.agent.execution.executor import START, Send
from edgepart.agent.execution.schedule import check_pieces
from edgepart.agent.serving import request_state as rules
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
from edgepart.agent.wire.dtypes import element_dtype, element_name
from edgepart.agent.wire.inference import Cancel, Epoch, Failed, Tensors
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.errors import (
    ClusterError,
    CrashError,
    EdgepartError,
    FrameError,
    InternalError,
    RequestError,
    RunError,
    Unavailable,
)
from edgepart.planner.plans.plan import GATEWAY, Piece, Plan, Receive, Transfer, ValueInfo
from edgepart.planner.region import Array, Region

log = logging.getLogger(__name__)


ALONE = 15
"""Latencies of requests that ran alone, of each plan: enough for a median, and soon new."""

FAILURES: Mapping[str, type[EdgepartError]] = {
    "request": RequestError,
    "failed": RunError,
    "crashed": CrashError,
    "unplanned": Unavailable,
}
"""By kind of rules.Fail; any other is a ClusterError."""


@dataclass(frozen=True, slots=True)
class Info:
    """How a request was answered."""

    epoch: Epoch
    replays: int
    """How many attempts were lost before the one that gave the answer."""
    strategy: str
    request: str = ""
    """The name that the answer's attempt had among agents."""


@dataclass(frozen=True)
class ActiveSide:
    """What the gateway does for requests that go to one replica."""

    nodes: frozenset[str]
    """Node ids of its devices."""
    outgoing: tuple[Transfer, ...]
    """Those that bring inputs to it."""
    incoming: Mapping[int, Transfer]
    """By number, those that bring outputs from it."""
    slots: Mapping[tuple[int, int], int]
    """By transfer to the gateway and piece in it, the number that the recipes know the piece by."""
    recipes: Mapping[str, CopyPlan]
    """By output, how it is put together from what comes."""
    starts: tuple[str, ...]
    """Devices whose programs receive nothing: they are told to start."""


@dataclass(frozen=True)
class ActivePlan:
    """A plan, worked out for its gateway: the same for every request."""

    plan: Plan
    nodes: Mapping[str, str]
    constants: Mapping[str, Array]
    sides: tuple[ActiveSide, ...]
    """One for each replica; where the plan has none, one of all devices."""
    program: str = ""
    """What its devices know it by; "" where that is what requests name."""

    @property
    def rules(self) -> tuple[rules.Side, ...]:
        """What is decided by."""
        return tuple(
            rules.Side(side.nodes, frozenset(side.incoming), replica)
            for side, replica in zip(self.sides, self.plan.parts, strict=True)
        )


@dataclass
class _Held:
    """An accepted request."""

    deployment: str
    inputs: dict[str, Value]
    outputs: tuple[str, ...]
    answer: asyncio.Future[tuple[dict[str, Value], Info]]
    began_s: float = 0.0
    idle_s: float = 0.0
    """Since when no attempt at it is under way."""
    exact: bool = False
    """Whether nothing of it is to be rounded on its way."""


@dataclass
class _Flight:
    """An attempt under way."""

    request: int
    deployment: str
    epoch: Epoch
    side: int = 0
    began_s: float = 0.0
    alone: bool = False
    """Whether no other request of this gateway was under way when it began."""
    got: dict[int, Value] = field(default_factory=dict)
    """By the recipes' numbers."""


class Requester:
    """Requests of this agent's clients."""

    def __init__(
        self,
        node: str,
        send: Send,
        window: rules.RequestWindow | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`node` is this agent's node id. To be made in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._recorder = recorder or Recorder()
        self._rules = rules.Requests(window or rules.RequestWindow())
        self._name = f"{node}/{secrets.token_hex(4)}"
        self._secret = secrets.token_bytes(16)
        """Of the names of attempts."""
        self._plans: dict[tuple[str, Epoch], ActivePlan] = {}
        self._current: dict[str, ActivePlan] = {}
        self._held: dict[int, _Held] = {}
        self._flights: dict[int, _Flight] = {}
        self._node = node
        self._alone_s: dict[tuple[str, Epoch], deque[float]] = {}
        self._alone_count: Counter[tuple[str, Epoch]] = Counter()
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
    ) -> tuple[dict[str, Value], Info]:
        """Run a request: its outputs (all, or those named) and how it went. Inputs must not change meanwhile.

        RequestError: the request does not fit the model, or the model fails on it. Unavailable: not accepted;
        try again later. ClusterError: accepted, but not answered in `deadline_s` seconds, or undeployed
        meanwhile."""
        plan = self.active(deployment)
        if plan is None:
            raise Unavailable(f"no plan of {deployment!r} is active here; `edgepart status` says why")
        checked = check_inputs(plan.inputs, inputs)
        return await self.run(deployment, checked, deadline_s, names_of(deployment, plan, outputs))

    async def run(
        self,
        deployment: str,
        inputs: dict[str, Value],
        deadline_s: float,
        outputs: tuple[str, ...],
        *,
        exact: bool = False,
    ) -> tuple[dict[str, Value], Info]:
        """`infer` for what is checked already (`check_inputs`, `names_of`), also where the first plan is to come. With
        `exact`, nothing is rounded on its way."""
        self._count += 1
        number = self._count
        now = self._loop.time()
        held = _Held(deployment, inputs, outputs, self._loop.create_future(), now, now, exact)
        self._held[number] = held
        self._handle(rules.Submitted(number, deployment, self._loop.time() + deadline_s, patient=True))
        try:
            return await held.answer
        finally:
            if self._held.pop(number, None) is not None:
                self._handle(rules.Withdrawn(number))

    def activate(
        self,
        deployment: str,
        epoch: Epoch,
        plan: Plan,
        nodes: Mapping[str, str],
        constants: Mapping[str, Array] | None = None,
        program: str = "",
    ) -> None:
        """New requests run on this plan from now on. `nodes`: node id by device name; `constants`: values of
        the plan's constant outputs that are not inputs; `program`: the deployment that its devices hold it for, where
        that is not what requests name. InternalError where the plan does not give every output."""
        if any(epoch < known for name, known in self._plans if name == deployment):
            return  # an epoch only grows; this one is of an old leader
        active = replace(activate_plan(plan, nodes, constants or {}), program=program)
        self._current[deployment] = active
        self._plans[deployment, epoch] = active
        self._handle(rules.Activated(deployment, epoch, active.rules))

    def suspend(self, deployment: str) -> None:
        """None of its plans is current any more, and another may come: its requests wait for that."""
        self._current.pop(deployment, None)
        self._handle(rules.Suspended(deployment))

    def refuse(self, deployment: str, error: Callable[[], EdgepartError]) -> None:
        """No plan of it will come: its requests are answered with this error, made anew for each."""
        for held in self._held.values():
            if held.deployment == deployment and not held.answer.done():
                held.answer.set_exception(error())
        self._remove(deployment)

    def remove(self, deployment: str) -> None:
        """It is undeployed, and so are its variants: what is held is answered with an error."""
        for name in {deployment, *(n for n in self.counts() if parent_of(n) == deployment)}:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._current.pop(name, None)
        self._handle(rules.DeploymentGone(name))

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """By deployment, requests in flight and waiting."""
        return self._rules.counts()

    def latencies(self) -> Mapping[tuple[str, Epoch], tuple[float, ...]]:
        """By deployment and epoch, what the last requests took that ran while no other one did."""
        return {key: tuple(seconds) for key, seconds in self._alone_s.items()}

    def alone(self) -> Mapping[tuple[str, Epoch], Alone]:
        """The same, and how many there were, and by whom."""
        return {
            key: Alone(
                seconds, self._alone_count[key], frozenset((self._node, *self._plans[key].nodes.values()))
            )
            for key, seconds in self.latencies().items()
            if key in self._plans
        }

    def active(self, deployment: str) -> Plan | None:
        """The plan that new requests run on."""
        known = self._current.get(deployment)
        return known.plan if known else None

    # From any thread

    def deliver(self, message: Tensors | Failed, values: Sequence[Value] = (), source: str = "") -> None:
        """A frame for a request of this gateway, which the node `source` sent ("": nobody says who). From any thread."""
        self._loop.call_soon_threadsafe(self._deliver, message, values, source)

    def lost(self, node: str) -> None:
        """The connection with a node is gone. From any thread."""
        self._loop.call_soon_threadsafe(self._handle, rules.DeviceLost(node))

    def found(self, node: str) -> None:
        """The connection with a node is there. From any thread."""
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
            return  # of an attempt that was abandoned
        active = self._plans[flight.deployment, flight.epoch]
        if message.deployment != (active.program or flight.deployment):
            return
        side = active.sides[flight.side]
        if source and source not in _senders(active, side, message):
            log.warning(
                "node %s sent %s of a request that is not its to answer", source, type(message).__name__
            )
            return
        if isinstance(message, Failed):
            self._handle(rules.AttemptFailed(attempt, message.stale, message.error, message.crashed))
            return
        try:
            check_pieces(side.incoming.get(message.transfer), message.transfer, values, {})
        except FrameError as error:
            self._handle(rules.AttemptFailed(attempt, False, str(error)))
            return
        flight.got.update((side.slots[message.transfer, n], value) for n, value in enumerate(values))
        self._handle(rules.OutputArrived(attempt, message.transfer))

    def _name_of(self, attempt: int) -> str:
        """What agents call it: whoever has not been told cannot name the next one."""
        tag = blake2s(str(attempt).encode(), key=self._secret, digest_size=8).hexdigest()
        return f"{self._name}/{attempt}-{tag}"

    def _attempt_of(self, request: str) -> int | None:
        """None where no attempt of this gateway's run is called so."""
        number = request.rpartition("/")[2].partition("-")[0]
        known = number.isascii() and number.isdecimal() and len(number) < 20
        return int(number) if known and request == self._name_of(int(number)) else None

    def _handle(self, event: rules.Event) -> None:
        """Decide and do; events that come up while doing so wait their turn."""
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
                self._settle(request, Unavailable(error, retry_after_s))
            case rules.Fail(request, error, kind):
                self._settle(request, FAILURES.get(kind, ClusterError)(error))
            case rules.Forget(deployment, epoch):
                del self._plans[deployment, epoch]
                self._alone_s.pop((deployment, epoch), None)
                self._alone_count.pop((deployment, epoch), None)

    def _start(self, effect: rules.Start) -> None:
        held = self._held[effect.request]
        active = self._plans[effect.deployment, effect.epoch]
        for flight in self._flights.values():
            flight.alone = False
        self._flights[effect.attempt] = _Flight(
            effect.request,
            effect.deployment,
            effect.epoch,
            effect.side,
            self._loop.time(),
            not self._flights and not held.exact,
        )
        about, began_s = self._subject(effect), self._loop.time()
        if self._recorder.on:
            self._recorder.add(QUEUES, QUEUE, held.idle_s, about)
        try:
            check_inputs(active.plan.inputs, held.inputs)  # the model may be another one by now
            parcels = cut(active, held.inputs, effect.side)
            self._copied(about, began_s, (value for _, _, values in parcels for value in values))
            for target, transfer, values in parcels:
                message = Tensors(
                    about.deployment, effect.epoch, about.request, transfer, (), exact=held.exact
                )
                self._send_input(target, message, values, about)
        except EdgepartError as error:
            stale, misfit = isinstance(error, ClusterError), isinstance(error, RequestError)
            self._queue.append(rules.AttemptFailed(effect.attempt, stale, str(error), misfit=misfit))

    def _subject(self, effect: rules.Start | rules.Abandon | rules.Answered) -> Subject:
        program = self._plans[effect.deployment, effect.epoch].program or effect.deployment
        return Subject(program, effect.epoch, self._name_of(effect.attempt))

    def _copied(self, about: Subject, began_s: float, values: Iterable[Value]) -> None:
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
            try:
                self._send(node, told, ())
            except ClusterError as error:
                log.debug("node %s is not told that attempt %d is abandoned: %s", node, effect.attempt, error)

    def _answer(self, effect: rules.Answered) -> None:
        active = self._plans[effect.deployment, effect.epoch]
        flight = self._flights.pop(effect.attempt)
        if flight.alone:
            key = effect.deployment, effect.epoch
            self._alone_s.setdefault(key, deque(maxlen=ALONE)).append(self._loop.time() - flight.began_s)
            self._alone_count[key] += 1
        held = self._held.pop(effect.request)
        if held.answer.done():
            return
        about, began_s = self._subject(effect), self._loop.time()
        try:
            outputs = {
                name: put_together(active, name, flight.got, held.inputs, flight.side)
                for name in held.outputs
            }
        except EdgepartError as error:
            held.answer.set_exception(error)
        else:
            info = Info(effect.epoch, effect.replays, active.plan.strategy, about.request)
            held.answer.set_result((outputs, info))
        self._copied(about, began_s, flight.got.values())
        if self._recorder.on:
            self._recorder.add(REQUESTS, REQUEST, held.began_s, about, f"{effect.replays} attempts before")

    def _settle(self, request: int, error: EdgepartError) -> None:
        held = self._held.pop(request)
        if not held.answer.done():
            held.answer.set_exception(error)


def _senders(active: ActivePlan, side: ActiveSide, message: Tensors | Failed) -> Collection[str]:
    """Nodes from which the message may come: whose output it is, or any that computes a part of the request."""
    if isinstance(message, Failed):
        return side.nodes
    transfer = side.incoming.get(message.transfer)
    return side.nodes if transfer is None else (active.nodes[transfer.source],)


def activate_plan(plan: Plan, nodes: Mapping[str, str], constants: Mapping[str, Array]) -> ActivePlan:
    """Work out what the gateway does for `plan`. InternalError if an output is missing or a device has no
    node."""
    if unknown := set(plan.programs) - set(nodes):
        raise InternalError(f"no node id given for devices {sorted(unknown)}")
    for name in plan.constant_outputs:
        if name not in {info.name for info in plan.inputs} and name not in constants:
            raise InternalError(f"no value given for the constant output {name!r}")
    sides = tuple(_active_side(plan, replica.devices, nodes) for replica in plan.parts)
    return ActivePlan(plan, dict(nodes), dict(constants), sides)


def _active_side(plan: Plan, devices: Sequence[str], nodes: Mapping[str, str]) -> ActiveSide:
    incoming = {t.number: t for t in plan.transfers if t.target == GATEWAY and t.source in devices}
    keys = [(t.number, n) for t in incoming.values() for n in range(len(t.pieces))]
    slots = {key: slot for slot, key in enumerate(keys)}
    pieces = {slot: incoming[number].pieces[n] for (number, n), slot in slots.items()}
    recipes: dict[str, CopyPlan] = {}
    for info in plan.outputs:
        if info.name in plan.constant_outputs:
            continue
        found = recipe(Piece(info.name, Region.full(info.shape)), pieces)
        if found is None:
            raise InternalError(f"the plan does not bring all of output {info.name!r} to the gateway")
        recipes[info.name] = found
    outgoing = tuple(t for t in plan.transfers if t.source == GATEWAY and t.target in devices)
    fed = {t.target for t in plan.transfers}
    starts = tuple(sorted(d for d in devices if d not in fed and _receives_nothing(plan.programs[d].steps)))
    members = frozenset(nodes[name] for name in devices)
    return ActiveSide(members, outgoing, incoming, slots, recipes, starts)


def _receives_nothing(steps: Sequence[object]) -> bool:
    return bool(steps) and not any(isinstance(step, Receive) for step in steps)


def check_inputs(expected: Sequence[ValueInfo], given: Mapping[str, Value]) -> dict[str, Value]:
    """`given`, with text arrays as object arrays. RequestError names the input at fault and what is
    expected."""
    wants = ", ".join(map(_say, expected)) or "no inputs"
    names = {info.name for info in expected}
    if unknown := [name for name in given if name not in names]:
        raise RequestError(f"there is no input {unknown[0]!r}; the model takes {wants}")
    checked: dict[str, Value] = {}
    for info in expected:
        if info.name not in given:
            raise RequestError(f"input {info.name!r} is missing; the model takes {wants}")
        checked[info.name] = _check_input(info, given[info.name])
    return checked


def _check_input(info: ValueInfo, value: Value) -> Value:
    dtype = element_dtype(info.dtype)
    if dtype is None:
        return value  # a sequence, a map: ONNX Runtime itself says if it is none
    if not isinstance(value, np.ndarray):
        raise RequestError(f"input {info.name!r} is a {type(value).__name__}; expected an array {_say(info)}")
    if dtype.kind == "O" and value.dtype.kind == "U":
        value = value.astype(object)
    if value.dtype != dtype:
        raise RequestError(f"input {info.name!r} is of {element_name(value.dtype)}; expected {_say(info)}")
    if info.shape is not None and value.shape != info.shape:
        raise RequestError(f"input {info.name!r} has shape {list(value.shape)}; expected {_say(info)}")
    return value


def _say(info: ValueInfo) -> str:
    return describe(replace(info, free=()))


def names_of(deployment: str, plan: Plan, outputs: Sequence[str]) -> tuple[str, ...]:
    """The outputs that are asked for, all where none are named. RequestError for one that there is not."""
    known = tuple(info.name for info in plan.outputs)
    if absent := [name for name in outputs if name not in known]:
        raise RequestError(f"{deployment!r} has no output {absent[0]!r}; it has {list(known)}")
    return tuple(outputs) or known


def cut(active: ActivePlan, inputs: Mapping[str, Value], side: int = 0) -> list[tuple[str, int, list[Value]]]:
    """What the gateway sends to one of the plan's sides: node id, transfer number, contiguous pieces."""
    parcels: list[tuple[str, int, list[Value]]] = []
    for transfer in active.sides[side].outgoing:
        values = [_piece_of(piece, inputs[piece.tensor]) for piece in transfer.pieces]
        parcels.append((active.nodes[transfer.target], transfer.number, values))
    return parcels + [(active.nodes[device], START, []) for device in active.sides[side].starts]


def _piece_of(piece: Piece, value: Value) -> Value:
    if piece.region.rank == 0 or not isinstance(value, np.ndarray):
        return value
    return np.ascontiguousarray(piece.region.crop(value))


def put_together(
    active: ActivePlan, name: str, got: Mapping[int, Value], inputs: Mapping[str, Value], side: int = 0
) -> Value:
    """One output, of what came from a side. InternalError where the parts of it that came cannot be parts of one
    array."""
    recipes = active.sides[side].recipes
    if name in recipes:
        try:
            return recipes[name].make(got)
        except (ValueError, TypeError) as error:
            raise InternalError(f"the parts of output {name!r} do not fit together: {error}") from error
    return inputs[name] if name in inputs else active.constants[name]
