"""Request queue: the requests under way on this device, whose turn it is to compute, and the requests that ended lately.
Rules: no thread; the clock is given. Callers hold the executor's lock.

The oldest request that can continue does; while one waits for a halo, another computes. One deployment computes at a time;
only a run that takes long shares the device with other deployments, so that a run that never ends holds none of them up.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from edgepart.agent.execution.carried_states import PlanId
from edgepart.agent.execution.counters import Counters
from edgepart.agent.execution.device_programs import DevicePrograms
from edgepart.agent.execution.outgoing import OutgoingMessage, hand_back
from edgepart.agent.execution.places import make_first_states
from edgepart.agent.execution.schedule import Progress, ReadyStep
from edgepart.agent.execution.sequences import KeptSequences, SequenceKey
from edgepart.agent.execution.tasks import (
    START_TRANSFER,
    EndedRequest,
    RequestTask,
    StepKind,
    check_same_request,
    gateway_of,
    kind_of,
    may_send,
    steps_of,
)
from edgepart.agent.wire.inference import Failed, Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import EdgepartError, FrameError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits on what may wait here at once. A request over a limit is handed back to its gateway, which tries again
    later."""

    requests: int = 1024
    """Requests under way. A larger limit takes more memory at worst; a smaller one hands bursts back sooner."""
    nbytes: int = 1 << 30
    """Bytes of pieces held. A single request may exceed it, as its plan was checked against the device's memory."""
    early_frames: int = 256
    """Frames kept for an epoch that is still being prepared."""
    remembered: int = 2048
    """Ended requests that are remembered, so that their late frames are ignored."""
    remembered_s: float = 60.0
    """Seconds after its end in which a request goes back to its gateway if a link that it used breaks."""


class ComputeLane(Protocol):
    """A lane (lanes.py), as far as the queue has to do with it."""

    name: str
    task: RequestTask | None
    unblocked: tuple[str, int]

    def has_turn(self, now: float) -> bool: ...

    def wake(self) -> None: ...


class RequestQueue:
    """The requests under way, in the order in which they came, and those that ended."""

    def __init__(
        self,
        limits: QueueLimits,
        programs: DevicePrograms,
        sequences: KeptSequences,
        counters: Counters,
        lanes: Mapping[str, ComputeLane],
        clock: Callable[[], float],
    ) -> None:
        """`lanes` has a lane for each deployment of which a program is installed. `clock` is monotonic."""
        self._limits = limits
        self._programs = programs
        self._sequences = sequences
        self._counters = counters
        self._lanes = lanes
        self._clock = clock
        self.tasks: dict[str, RequestTask] = {}
        self._trials: set[str] = set()
        """Those of them that try a plan."""
        self._ended: OrderedDict[str, EndedRequest | None] = OrderedDict()

    # Messages

    def take(
        self, message: Tensors, values: Sequence[Value], source: str, nbytes: int
    ) -> Sequence[OutgoingMessage]:
        """Take the pieces of a request, which have `nbytes` bytes, and wake its lane if the request can continue now.
        Returns what has to be sent: the request goes back to its gateway if the pieces do not fit."""
        task = self.tasks.get(message.request)
        if task is None:
            if message.request in self._ended:
                return ()
            key, programs = (message.deployment, message.epoch), self._programs
            if key in programs.early:
                return self._take_early(key, message, values, source)
            kind = kind_of(message)
            installed = programs.installed.get(key, {}).get(kind)
            if installed is None:
                return [self._refuse(key, message)]
            if not may_send(installed, message, source):
                return ()
            if self.tasks and self._is_full(nbytes):
                self._remember(message.request, None)
                return [hand_back(message, "this device has too many requests under way")]
            task = RequestTask(
                *key,
                message.request,
                installed,
                Progress(installed.schedule),
                message.exact,
                steps_of(message),
                kind,
                message.likely,
                self._clock(),
            )
            self.tasks[message.request] = task
            if task.exact:
                self._trials.add(message.request)
        # First of all: whoever knows the request's name must not be able to end it by a frame that contradicts it.
        if not may_send(task.installed, message, source):
            return ()
        try:
            check_same_request(task, message)
            if message.transfer != START_TRANSFER:
                task.progress.keep_pieces(message.transfer, values)
        except FrameError as error:
            log.warning("request %s: %s", message.request, error)
            return [self.fail(task, str(error), stale=False)]
        if self._is_ready(task):
            # Only when it is ready: of several transfers that a step needs, the last one wakes the thread.
            lane = self._lanes[task.lane]
            lane.unblocked = message.request, message.transfer
            lane.wake()
        return ()

    def _take_early(
        self, key: PlanId, message: Tensors, values: Sequence[Value], source: str
    ) -> Sequence[OutgoingMessage]:
        early = self._programs.early[key]
        if len(early) >= self._limits.early_frames:
            return [hand_back(message, "this device is still preparing that epoch")]
        early.append((message, values, source))
        return ()

    def _refuse(self, key: PlanId, message: Tensors) -> OutgoingMessage:
        """Hand a request back whose program is not installed."""
        if key in self._programs.installed:
            why = f"this device makes no {kind_of(message).value} steps by this plan now"
            return hand_back(message, why, lost_state=True)
        return hand_back(message, "this device has left that epoch, or does not know it")

    def _is_full(self, more_bytes: int) -> bool:
        too_many = len(self.tasks) >= self._limits.requests
        return too_many or self.held_bytes() + more_bytes > self._limits.nbytes

    def held_bytes(self) -> int:
        """Bytes of the pieces that the requests under way hold."""
        return sum(task.progress.held_bytes for task in self.tasks.values())

    # Turns

    def next_step(
        self, lane: ComputeLane, now: float
    ) -> tuple[RequestTask, ReadyStep | EdgepartError] | None:
        """The step of the oldest request that can continue, if it belongs to this lane, or the error that keeps it from
        beginning; otherwise the lane that it belongs to is woken."""
        if len(self._lanes) > 1 and any(one.has_turn(now) for one in self._lanes.values() if one is not lane):
            return None
        for task in self.in_order():
            if task.lane != lane.name:
                other = self._lanes.get(task.lane)
                if other is not None and other.task is None and self._is_ready(task):
                    other.wake()
                    return None
                continue
            if not task.progress.begun:
                if self._awaits_step(task):
                    continue
                try:
                    self._begin_states(task, now)
                except EdgepartError as error:
                    return task, error
            work = task.progress.next_work()
            if work is not None:
                return task, work
            if task.progress.finished:
                self.finish(task)
        return None

    def in_order(self) -> list[RequestTask]:
        """The requests under way, in the order of their turns: as they came, but those that try a plan later."""
        tasks = list(self.tasks.values())
        if self._trials:  # Otherwise they lie in this order.
            tasks.sort(key=attrgetter("counts_from_s"))
        return tasks

    def _is_ready(self, task: RequestTask) -> bool:
        """Whether the request can continue now."""
        return task.progress.ready if task.progress.begun else not self._awaits_step(task)

    def _awaits_step(self, task: RequestTask) -> bool:
        """Whether the step of a sequence before this request is still under way here."""
        mine = task.by_sequence
        return any(
            step.after == mine[key].position
            for other in self.tasks.values()
            if other is not task
            for key, step in other.by_sequence.items()
            if key in mine
        )

    def _begin_states(self, task: RequestTask, now: float) -> None:
        """Give the request the states with which it begins. Raises StateLost and Unavailable."""
        prepared, steps = task.installed.prepared, task.by_sequence
        if task.kind is StepKind.BATCH:
            task.progress.begin(self._sequences.begin_batch(steps, prepared, now))
            return
        for key, step in steps.items():
            busy = self.busy_sequences()
            batch = self._programs.batches.get((task.deployment, task.epoch))
            task.began = self._sequences.begin(key, step, prepared, now, busy, batch)
            task.progress.begin(task.began)
        if not steps:
            task.progress.begin(make_first_states(prepared))

    def busy_sequences(self) -> set[SequenceKey]:
        """The sequences whose steps are under way."""
        return {key for one in self.tasks.values() if one.progress.begun for key in one.by_sequence}

    # Ends

    def finish(self, task: RequestTask) -> None:
        """End a request whose steps are all done, and keep the states that they left."""
        prepared, now = task.installed.prepared, self._clock()
        if task.kind is StepKind.BATCH:
            ended = () if prepared.program.in_place else task.progress.keep_state(prepared.empty)
            self._sequences.finish_batch(task.by_sequence, prepared, ended, now)
        elif prepared.program.kept:
            for key, step in task.by_sequence.items():
                # Where the worker finds them: it would need a copy otherwise.
                ended = task.progress.keep_state(prepared.empty, step.after - step.position)
                self._sequences.finish(key, step, prepared, task.began, ended, now)
        self._end(task)
        peers = task.installed.peers
        self._remember(task.request, EndedRequest(task.deployment, task.epoch, task.request, peers, now))
        self._counters.requests_done += 1

    def fail(self, task: RequestTask, error: str, *, stale: bool, **flags: bool) -> OutgoingMessage:
        """End the request, and tell its gateway. `flags` are further fields of Failed."""
        self._end(task)
        self._counters.requests_failed += 1
        failed = Failed(task.deployment, task.epoch, task.request, stale, error, **flags)
        return gateway_of(task.request), failed, ()

    def cancel(self, request: str) -> None:
        """Forget a request, and ignore its frames that come later."""
        if (task := self.tasks.get(request)) is not None:
            self._end(task)
        self._remember(request, None)

    def end_sequence(self, sequence: str) -> None:
        """Drop the steps of a sequence that are under way."""
        for task in list(self.tasks.values()):
            if any(key[2] == sequence for key in task.by_sequence):
                self._end(task)

    def leave(self, plan: PlanId) -> list[OutgoingMessage]:
        """End the requests of a plan that this device leaves. Returns what has to be sent."""
        left = [task for task in self.tasks.values() if (task.deployment, task.epoch) == plan]
        return [self.fail(task, "this device has left that epoch", stale=True) for task in left]

    def lose(self, node: str) -> list[OutgoingMessage]:
        """End the requests of a gateway with which the connection broke, and those that use that link. Returns what has to
        be sent: they go back to their gateways, and so do those that ended lately and used it."""
        out: list[OutgoingMessage] = []
        error = f"the connection with node {node} broke"
        for task in list(self.tasks.values()):
            if gateway_of(task.request) == node:
                self._end(task)
            elif node in task.installed.peers:
                out.append(self.fail(task, error, stale=True))
        since = self._clock() - self._limits.remembered_s
        for ended in [one for one in self._ended.values() if one and one.at_s > since]:
            if node in ended.peers and gateway_of(ended.request) != node:
                self._ended[ended.request] = None
                out.append(hand_back(ended, error))
        return out

    def _end(self, task: RequestTask) -> None:
        del self.tasks[task.request]
        self._trials.discard(task.request)
        self._remember(task.request, None)
        lane = self._lanes.get(task.lane)
        if lane is not None and lane.task is task:
            task.installed.prepared.stop()
        elif lane is not None and task.steps:
            lane.wake()  # The next step of its sequence may wait for this one.

    def _remember(self, request: str, ended: EndedRequest | None) -> None:
        self._ended[request] = ended
        while len(self._ended) > self._limits.remembered:
            self._ended.popitem(last=False)
