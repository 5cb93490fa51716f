"""Request state: the state machine of the requests that a gateway holds. Rules: `handle(event, now) -> effects`; no clock,
no socket.

An accepted request is answered exactly once: with its outputs, or with an error that says why. Each try is an **attempt**
with a number of its own, so that frames of an earlier attempt are never taken for frames of this one. A request whose
attempt is lost (a device was lost, an epoch was left) waits for a plan that can run, and is started again there.

If a plan has replicas, each attempt goes to one of them (planner/plans/balance_requests.py); a lost attempt is tried on
another replica at once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.execution.tasks import StepKind
from edgepart.agent.wire.inference import NO_EPOCH, Epoch
from edgepart.planner.plans.balance_requests import choose_replica
from edgepart.planner.plans.plan import Replica

CRASHES_FORGIVEN = 1
"""Worker crashes after which a request is still tried again: the first one may have had another cause."""
MOST_HOMES = 4096
"""Names of sequences of which the replica is remembered. One that is forgotten may go to another replica, which does not
have its states, so that its steps are made again there."""
IN_FLIGHT_PER_REPLICA = 2
"""Requests for each replica that may be in flight, if that is more than the window allows: while one is computed, the next
one's data travels."""


@dataclass(frozen=True, slots=True)
class RequestWindow:
    """Limits on the requests of one deployment that are in flight or wait, and pauses before lost ones are tried again."""

    in_flight: int = 16
    """Requests that are started at once. A larger number fills pipelines better; a smaller one takes less memory on the
    devices and leaves less to replay."""
    waiting: int = 256
    """Requests that are accepted and not started. A larger number bridges longer outages; a smaller one tells clients
    sooner that the gateway is full."""
    retry_s: float = 0.05
    """Seconds before a second attempt on the same epoch; doubled each time. A shorter pause means less waiting, a longer
    one less useless work."""
    longest_retry_s: float = 1.0


@dataclass(frozen=True, slots=True)
class ReplicaSide:
    """One replica of a plan, as its gateway knows it; the whole plan, if it has no replicas."""

    nodes: frozenset[str]
    """Node ids of the devices that the replica needs."""
    outputs: frozenset[int]
    """Numbers of the transfers that bring its outputs to the gateway."""
    pace: Replica = field(default=Replica(()))
    """The replica's times, by which requests are balanced over replicas."""
    batch_outputs: frozenset[int] = frozenset()
    """The same numbers for requests that make steps in several sequences."""

    def outputs_of(self, kind: StepKind) -> frozenset[int]:
        """The numbers of the transfers that answer a request."""
        if kind is StepKind.PREFILL:
            return frozenset()
        return self.batch_outputs if kind is StepKind.BATCH else self.outputs


# Events


@dataclass(frozen=True, slots=True)
class Submitted:
    """A client's request came in. Its inputs fit the model; the requester keeps them."""

    request: int
    """The request's number. Requests that came earlier have smaller numbers."""
    deployment: str
    deadline_s: float
    """Time at which the request is answered with an error at the latest."""
    patient: bool = False
    """Whether the request waits if no plan is known yet; otherwise it is refused then."""
    home: str = ""
    """What the sequences of the request's steps are called together: all such requests go to one replica. "" if it makes no
    step of a sequence."""
    kind: StepKind = StepKind.USUAL
    """Nothing is sent back for PREFILL: the request is answered as soon as it is started."""
    again_s: float = inf
    """Seconds for which the request waits for its answer after devices could not complete an attempt, because one is lost
    or does not hold the plan any more. A request that tries a plan gives up soon: no other plan comes for it, and the
    deployment waits for its verdict."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The client no longer wants the answer (it hung up)."""

    request: int


@dataclass(frozen=True, slots=True)
class Activated:
    """A plan of a deployment is ready on all its devices: new requests start on it. An epoch older than the current one is
    ignored."""

    deployment: str
    epoch: Epoch
    sides: tuple[ReplicaSide, ...]
    """The plan's replicas; at least one."""


@dataclass(frozen=True, slots=True)
class Suspended:
    """No plan of a deployment is current any more, and another may come: its requests wait for it."""

    deployment: str


@dataclass(frozen=True, slots=True)
class DeploymentGone:
    """The deployment does not exist any more."""

    deployment: str


@dataclass(frozen=True, slots=True)
class OutputArrived:
    """A transfer to the gateway arrived; the requester keeps its pieces."""

    attempt: int
    transfer: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A device cannot finish an attempt."""

    attempt: int
    stale: bool
    """Whether nothing is wrong with the request itself, so that it is tried again."""
    error: str
    crashed: bool = False
    """Whether the process that computed the request ended: the request is tried once more only."""
    misfit: bool = False
    """Whether the request's inputs do not fit the model, which may be another one by now."""
    lost_state: bool = False
    """Whether the states with which a step of a sequence begins are gone: trying the step alone again does not help."""
    no_room: bool = False
    """Whether a device has no room for the states of another sequence now."""


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """The connection with a node broke: attempts that need the node are lost."""

    node: str


@dataclass(frozen=True, slots=True)
class DeviceFound:
    """There is a connection with a node (again)."""

    node: str


Event = (
    Submitted
    | Withdrawn
    | Activated
    | Suspended
    | DeploymentGone
    | OutputArrived
    | AttemptFailed
    | DeviceLost
    | DeviceFound
)


# Effects


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is not accepted: it was not run and will not be."""

    request: int
    error: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Send the request's inputs, under this attempt's name, to the devices of one replica of that epoch's plan."""

    request: int
    attempt: int
    deployment: str
    epoch: Epoch
    side: int = 0
    """The replica's index in the plan's sides."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Tell the devices of that replica to forget the attempt, and drop the outputs that arrived."""

    attempt: int
    deployment: str
    epoch: Epoch
    side: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """All outputs of this attempt are here: answer the client with them."""

    request: int
    attempt: int
    deployment: str
    epoch: Epoch
    replays: int
    """Number of attempts that were lost before this one."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer the client with this error."""

    request: int
    error: str
    kind: str
    """"request": the request does not fit the model. "failed": a device could not compute it. "crashed": it ended two
    workers. "state": it is a step of a sequence whose states are gone. "deadline": the deadline passed. "unplanned": the
    deadline passed, and there was no plan. "removed": the deployment does not exist any more."""


@dataclass(frozen=True, slots=True)
class Forget:
    """No request runs on that epoch any more, and none will: drop its plan."""

    deployment: str
    epoch: Epoch


Effect = Refuse | Start | Abandon | Answered | Fail | Forget


@dataclass(slots=True)
class _Attempt:
    number: int
    epoch: Epoch
    side: int
    missing: set[int]
    """Numbers of the output transfers that have yet to arrive."""


@dataclass(slots=True)
class _RequestState:
    number: int
    deployment: str
    deadline_s: float
    attempt: _Attempt | None = None
    """The attempt under way; None while the request waits."""
    replays: int = 0
    crashes: int = 0
    """Number of workers that ended while they computed this request."""
    tried: set[tuple[Epoch, int]] = field(default_factory=set)
    """Epochs and sides on which the request's last attempts were lost."""
    not_before_s: float = -inf
    """Time from which the request may be tried on the sides in `tried` again."""
    last_error: str = ""
    no_room: bool = False
    """Whether a device had no room for its sequence the last time."""
    home: str = ""
    kind: StepKind = StepKind.USUAL
    again_s: float = inf


@dataclass(slots=True)
class _Deployment:
    current: Epoch
    """The epoch on which requests start; NO_EPOCH while there is no plan."""
    plans: dict[Epoch, tuple[ReplicaSide, ...]]
    """The current plan, and older ones on which attempts are still under way."""
    homes: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """The side of the current plan that keeps the states of sequences, by what they are called together; those that were
    used last come last."""

    def choose_home(self, home: str, paces: Sequence[Replica], able: Sequence[int]) -> int:
        """The side to which the steps of these sequences go: the one to which they went before, or else, of those that are
        able, the one that would answer first if all sequences made a step at once."""
        side = self.homes.get(home, -1)
        if side not in able:
            there = Counter(self.homes.values())
            side = choose_replica(paces, [there[n] for n in range(len(paces))], able)
        self.homes[home] = side
        self.homes.move_to_end(home)
        while len(self.homes) > MOST_HOMES:
            self.homes.popitem(last=False)
        return side


@dataclass(slots=True)
class Requests:
    """The state of all requests of one gateway."""

    window: RequestWindow = field(default_factory=RequestWindow)
    _deployments: dict[str, _Deployment] = field(default_factory=dict)
    _requests: dict[int, _RequestState] = field(default_factory=dict)
    _attempts: dict[int, _RequestState] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _next_attempt: int = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of `event` at the time `now`, in the order in which they must be carried out."""
        effects = list(self._handle(event, now))
        return effects + self.wake(now)

    def wake(self, now: float) -> list[Effect]:
        """The effects of time alone: deadlines that have passed, and lost requests that may be tried again."""
        return [*self._expire(now), *self._start_waiting(now), *self._forget_plans()]

    def wake_at(self) -> float:
        """The next time at which `wake` has an effect; inf if there is none."""
        at = inf
        for request in self._requests.values():
            at = min(at, request.deadline_s)
            current = self.current(request.deployment)
            if request.attempt is None and any(epoch == current for epoch, _ in request.tried):
                at = min(at, request.not_before_s)
        return at

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """The numbers of requests in flight and waiting, by deployment."""
        found = dict.fromkeys(self._deployments, (0, 0))
        for request in self._requests.values():
            flying, waiting = found.get(request.deployment, (0, 0))
            started = request.attempt is not None
            found[request.deployment] = (flying + started, waiting + (not started))
        return found

    def current(self, deployment: str) -> Epoch | None:
        """The epoch on which requests start; None if the deployment is not known."""
        known = self._deployments.get(deployment)
        return known.current if known else None

    def home_of(self, deployment: str, home: str) -> int | None:
        """The side of the current plan to which steps of these sequences went last; None if none did."""
        known = self._deployments.get(deployment)
        return known.homes.get(home) if known else None

    def _handle(self, event: Event, now: float) -> Iterator[Effect]:
        match event:
            case Submitted():
                yield from self._submit(event, now)
            case Withdrawn(number):
                if request := self._requests.get(number):
                    yield from self._end(request)
            case Activated():
                self._activate(event)
            case Suspended(name):
                if known := self._deployments.get(name):
                    known.current = NO_EPOCH
            case DeploymentGone(name):
                yield from self._remove(name)
            case OutputArrived(attempt, transfer):
                yield from self._handle_output(attempt, transfer)
            case AttemptFailed():
                yield from self._handle_failure(event, now)
            case DeviceLost(node):
                self._lost.add(node)
                yield from self._replay_broken(node, f"the connection with node {node} is gone", now)
            case DeviceFound(node):
                self._lost.discard(node)
                # Attempts that began without the connection: the node may have made them, and could not say so.
                yield from self._replay_broken(node, f"there was no connection with node {node} yet", now)

    def _submit(self, event: Submitted, now: float) -> Iterator[Effect]:
        waiting = self.counts().get(event.deployment, (0, 0))[1]
        if event.deployment not in self._deployments and not event.patient:
            yield Refuse(
                event.request,
                f"no plan of {parent_of(event.deployment)!r} is active; see `edgepart status`",
                1.0,
            )
        elif waiting >= self.window.waiting:
            why = (
                f"{waiting} requests wait for {parent_of(event.deployment)!r} already; "
                "try again, or send fewer at once"
            )
            yield Refuse(event.request, why, 1.0)
        elif event.deadline_s <= now:
            yield Refuse(event.request, "its deadline has passed before it came in", 0.0)
        else:
            known = self._deployments.setdefault(event.deployment, _Deployment(NO_EPOCH, {}))
            sides = known.plans.get(known.current, ())
            lost = bool(sides) and not any(self._lost.isdisjoint(side.nodes) for side in sides)
            self._requests[event.request] = _RequestState(
                event.request,
                event.deployment,
                min(event.deadline_s, now + event.again_s) if lost else event.deadline_s,
                home=event.home,
                kind=event.kind,
                again_s=event.again_s,
            )

    def _activate(self, event: Activated) -> None:
        known = self._deployments.setdefault(event.deployment, _Deployment(event.epoch, {}))
        if event.epoch >= known.current:
            if event.epoch != known.current:
                known.homes.clear()
            known.current = event.epoch
            known.plans[event.epoch] = event.sides

    def _remove(self, name: str) -> Iterator[Effect]:
        for request in [r for r in self._requests.values() if r.deployment == name]:
            yield from self._end(request)
            yield Fail(
                request.number, f"{parent_of(name)!r} was undeployed while this request was held", "removed"
            )
        known = self._deployments.pop(name, None)
        yield from (Forget(name, epoch) for epoch in (known.plans if known else ()))

    def _handle_output(self, attempt: int, transfer: int) -> Iterator[Effect]:
        request = self._attempts.get(attempt)
        if request is None or request.attempt is None:
            return  # The attempt was abandoned.
        request.attempt.missing.discard(transfer)
        yield from self._answer_if_whole(request)

    def _answer_if_whole(self, request: _RequestState) -> Iterator[Effect]:
        attempt = request.attempt
        if attempt is not None and not attempt.missing:
            del self._attempts[attempt.number], self._requests[request.number]
            yield Answered(request.number, attempt.number, request.deployment, attempt.epoch, request.replays)

    def _handle_failure(self, event: AttemptFailed, now: float) -> Iterator[Effect]:
        request = self._attempts.get(event.attempt)
        if request is None:
            return
        request.crashes += event.crashed
        if event.crashed and request.crashes > CRASHES_FORGIVEN:
            yield from self._end(request)
            yield Fail(
                request.number,
                f"{request.crashes} times a process ended that computed this request, the last time because {event.error}. "
                "It is not tried again",
                "crashed",
            )
        elif event.lost_state:
            yield from self._end(request)
            yield Fail(request.number, event.error, "state")
        elif event.stale:
            request.no_room = event.no_room
            if event.no_room:  # Its plan is whole: other sequences end, and then there is room.
                request.last_error = event.error
                yield from self._put_off(request, now)
            else:
                yield from self._replay(request, event.error, now)
        else:
            yield from self._end(request)
            yield Fail(request.number, event.error, "request" if event.misfit else "failed")

    def _replay_broken(self, node: str, error: str, now: float) -> Iterator[Effect]:
        for request in list(self._attempts.values()):
            side = self._side_of(request)
            if side is not None and node in side.nodes:
                yield from self._replay(request, error, now)

    def _replay(self, request: _RequestState, error: str, now: float) -> Iterator[Effect]:
        """Handle an attempt that its devices cannot complete. What told of it first does not matter: this agent's own
        connections, or a device that misses another one or does not hold the plan any more."""
        request.last_error = error
        request.deadline_s = min(request.deadline_s, now + request.again_s)
        yield from self._put_off(request, now)

    def _put_off(self, request: _RequestState, now: float) -> Iterator[Effect]:
        """Handle the loss of the request's attempt: it waits for another replica, a newer epoch, or `not_before_s`."""
        if request.attempt is None:
            return
        request.tried.add((request.attempt.epoch, request.attempt.side))
        wait = self.window.retry_s * 2 ** min(request.replays, 30)
        request.not_before_s = now + min(wait, self.window.longest_retry_s)
        request.replays += 1
        yield from self._abandon(request)

    def _abandon(self, request: _RequestState) -> Iterator[Effect]:
        attempt, request.attempt = request.attempt, None
        if attempt is not None:
            del self._attempts[attempt.number]
            yield Abandon(attempt.number, request.deployment, attempt.epoch, attempt.side)

    def _end(self, request: _RequestState) -> Iterator[Effect]:
        del self._requests[request.number]
        yield from self._abandon(request)

    def _expire(self, now: float) -> Iterator[Effect]:
        for request in [r for r in self._requests.values() if r.deadline_s <= now]:
            state = "waited for its turn" if request.attempt is None else "was being computed"
            last = (
                f"; lost {request.replays} times, last because {request.last_error}"
                if request.replays
                else ""
            )
            kind = "full" if request.no_room else "deadline"
            if self.current(request.deployment) == NO_EPOCH:
                kind = "unplanned"
            yield from self._end(request)
            yield Fail(request.number, f"the deadline passed while it {state}{last}", kind)

    def _start_waiting(self, now: float) -> Iterator[Effect]:
        """Start the requests that may start, the oldest first."""
        room = {name: self._window_of(name) - flying for name, (flying, _) in self.counts().items()}
        flying = self._attempts_in_flight()
        for number in sorted(n for n, r in self._requests.items() if r.attempt is None):
            request = self._requests[number]
            if now >= request.not_before_s:
                request.tried.clear()
            side = self._side_for(request, flying) if room[request.deployment] > 0 else None
            if side is None:
                continue
            attempt = self._start(request, side)
            yield Start(number, attempt.number, request.deployment, attempt.epoch, side)
            if not attempt.missing:  # No device sends an output: the gateway answers alone.
                yield from self._answer_if_whole(request)
            else:
                room[request.deployment] -= 1
                flying[request.deployment, attempt.epoch, side] += 1

    def _start(self, request: _RequestState, side: int) -> _Attempt:
        known = self._deployments[request.deployment]
        outputs = known.plans[known.current][side].outputs_of(request.kind)
        attempt = request.attempt = _Attempt(self._next_attempt, known.current, side, set(outputs))
        self._attempts[self._next_attempt] = request
        self._next_attempt += 1
        return attempt

    def _side_for(self, request: _RequestState, flying: Counter[tuple[str, Epoch, int]]) -> int | None:
        """The side of the current plan that the request should go to: one that can run, and on which it was not just
        lost. None if there is none."""
        known = self._deployments[request.deployment]
        sides = known.plans.get(known.current, ())
        able = [
            n
            for n, side in enumerate(sides)
            if (known.current, n) not in request.tried and self._lost.isdisjoint(side.nodes)
        ]
        if not able:
            return None
        paces = [side.pace for side in sides]
        if request.home:
            return known.choose_home(request.home, paces, able)
        there = [flying[request.deployment, known.current, n] for n in range(len(sides))]
        return choose_replica(paces, there, able)

    def _window_of(self, deployment: str) -> int:
        known = self._deployments[deployment]
        sides = len(known.plans.get(known.current, ()))
        return max(self.window.in_flight, IN_FLIGHT_PER_REPLICA * sides if sides > 1 else 0)

    def _attempts_in_flight(self) -> Counter[tuple[str, Epoch, int]]:
        """Numbers of attempts under way, by deployment, epoch and side."""
        under_way = ((r.deployment, r.attempt) for r in self._attempts.values())
        return Counter((name, one.epoch, one.side) for name, one in under_way if one is not None)

    def _forget_plans(self) -> Iterator[Effect]:
        """Forget old plans on which no attempt runs any more, and deployments without a plan and without requests."""
        in_use = {(r.deployment, r.attempt.epoch) for r in self._attempts.values() if r.attempt}
        for name, known in self._deployments.items():
            for epoch in [e for e in known.plans if e != known.current and (name, e) not in in_use]:
                del known.plans[epoch]
                yield Forget(name, epoch)
        held = {request.deployment for request in self._requests.values()}
        for name in [n for n, d in self._deployments.items() if d.current == NO_EPOCH and n not in held]:
            del self._deployments[name]

    def _side_of(self, request: _RequestState) -> ReplicaSide | None:
        if request.attempt is None:
            return None
        return self._deployments[request.deployment].plans[request.attempt.epoch][request.attempt.side]
