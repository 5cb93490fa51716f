"""Executor: runs this device's programs. A door: one compute thread for each deployment, which sleeps until there is work
(lanes.py).

Reader threads and the local gateway call `deliver` with the arrays of arriving frames, which the executor keeps and nobody
may change afterwards. The oldest request that can continue does; while one waits for a halo, another computes. One
deployment computes at a time; only a run that takes long shares the device with other deployments, so that a run that never
ends holds none of them up. Messages are sent with a function that the caller gives. It must not wait for the other side: it
writes what the kernel takes at once, and leaves the rest to another thread.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from threading import RLock, Thread

import numpy as np

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.execution.carried_states import CarriedStates, PlanId
from edgepart.agent.execution.counters import Counters, SegmentTime
from edgepart.agent.execution.lanes import EXCLUSIVE_STEP_S, BorrowedConnection, Lane
from edgepart.agent.execution.places import make_first_states
from edgepart.agent.execution.prepared import RunnableProgram, describe_segment
from edgepart.agent.execution.schedule import Progress, ReadyStep
from edgepart.agent.execution.sequences import KeptSequences, SequenceKey
from edgepart.agent.execution.tasks import (
    START_TRANSFER,
    EndedRequest,
    InstalledProgram,
    RequestTask,
    StepKind,
    check_same_request,
    gateway_of,
    kind_of,
    make_installed,
    may_send,
    steps_of,
)
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import COMPUTE, COMPUTING, COPY, SEND, WAIT
from edgepart.agent.wire.inference import Epoch, Failed, RequestMessage, Tensors
from edgepart.agent.wire.likely_entries import keep_likely
from edgepart.agent.wire.reduced_precision import RoundingTally, restore_array, round_all
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.errors import (
    ClusterError,
    EdgepartError,
    FrameError,
    InternalError,
    StateLost,
    Unavailable,
    WorkerDied,
)
from edgepart.planner.figures import format_count
from edgepart.planner.plans.plan import GATEWAY, Program, Run, Send, Transfer

log = logging.getLogger(__name__)

SendValues = Callable[[str, RequestMessage, Sequence[Value]], None]
"""send(node id, message, values) sends to a member or to this device itself. The `arrays` of a Tensors are left () for
the sender to fill in while packing `values`. Raises ClusterError if the node cannot be reached."""

DataFrom = Callable[[str], BorrowedConnection | None]
"""data_from(node id) is the connection on which transfers come from that node; None if there is none."""

COMPUTE_THREAD = "edgepart-compute"


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


OutgoingMessage = tuple[str, RequestMessage, Sequence[Value]]
"""The arguments of a `SendValues`."""


class Executor:
    """The programs installed on this device, their requests under way, and the compute threads. Thread-safe."""

    def __init__(
        self,
        send: SendValues,
        limits: QueueLimits | None = None,
        recorder: Recorder | None = None,
        data_from: DataFrom = lambda node: None,
    ) -> None:
        """`data_from` has the connections on which transfers come, which compute threads may read themselves."""
        self._send = send
        self._data_from = data_from
        self._limits = limits or QueueLimits()
        self._recorder = recorder or Recorder()
        self._installed: dict[PlanId, dict[StepKind, InstalledProgram]] = {}
        self._batches: dict[PlanId, Program] = {}
        """The programs that make steps in several sequences, as far as there are such, loaded or not."""
        self._expected: dict[PlanId, list[tuple[Tensors, Sequence[Value], str]]] = {}
        self._tasks: dict[str, RequestTask] = {}
        self._trials: set[str] = set()
        """Those of them that try a plan."""
        self._ended: OrderedDict[str, EndedRequest | None] = OrderedDict()
        self._sequences = KeptSequences()
        self._counters = Counters()
        self._lock = RLock()
        self.carried = CarriedStates(
            self._lock,
            self._sequences,
            self._usual_program,
            self._batches.get,
            self._busy_sequences,
            time.monotonic,
        )
        """What other devices get and bring of the states that are kept here."""
        self._lanes: dict[str, Lane] = {}
        self._threads: list[Thread] = []
        self._started = False
        self._stopping = False

    def start(self) -> None:
        with self._lock:
            self._started = True
            for lane in self._lanes.values():
                self._begin(lane)

    def stop(self, wait_s: float = 3.0) -> None:
        """Wait until the steps under way end, for `wait_s` seconds at most. Requests that are not done are dropped; their
        gateways see this device leave."""
        until = time.monotonic() + wait_s
        with self._lock:
            self._stopping = True
            for lane in self._lanes.values():
                lane.wake()
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    # Programs

    def expect(self, deployment: str, epoch: Epoch) -> None:
        """Keep the frames of an epoch whose program is being prepared, until `install` or `retire`."""
        with self._lock:
            if (deployment, epoch) not in self._installed:
                self._expected.setdefault((deployment, epoch), [])

    def install(
        self,
        deployment: str,
        epoch: Epoch,
        prepared: RunnableProgram,
        transfers: Sequence[Transfer],
        nodes: Mapping[str, str],
        others: Mapping[StepKind, tuple[RunnableProgram, Sequence[Transfer]]] | None = None,
        batch: Program | None = None,
    ) -> None:
        """Take requests of that epoch from now on. `transfers` are the plan's; `nodes` has the node id of each device
        name. `others` are the programs and the transfers of other kinds of steps than the usual ones. With `batch`, which
        makes steps in several sequences and which `add` may install later, sequences lie side by side from the begin.
        Raises InternalError if a program's schedule cannot be made, a node id is missing, or the program is installed
        already."""
        programs = {StepKind.USUAL: (prepared, transfers), **(others or {})}
        installed = {kind: make_installed(deployment, *one, nodes) for kind, one in programs.items()}
        with self._lock:
            if (deployment, epoch) in self._installed:
                raise InternalError(f"{deployment} {epoch} is installed already")
            self._installed[deployment, epoch] = installed
            if batch is not None:
                self._batches[deployment, epoch] = batch
            self._open(parent_of(deployment))
            early = self._expected.pop((deployment, epoch), [])
        for message, values, source in early:
            self.deliver(message, values, source)

    def add(
        self,
        deployment: str,
        epoch: Epoch,
        kind: StepKind,
        prepared: RunnableProgram,
        transfers: Sequence[Transfer],
        nodes: Mapping[str, str],
    ) -> bool:
        """Take a further kind of steps of an installed program from now on. Returns False if that program is not here any
        more. Raises InternalError as `install` does."""
        installed = make_installed(deployment, prepared, transfers, nodes)
        with self._lock:
            if (deployment, epoch) not in self._installed:
                return False
            self._installed[deployment, epoch][kind] = installed
            return True

    def retire(self, deployment: str, epoch: Epoch) -> list[RunnableProgram]:
        """Leave that epoch: its requests under way go back to their gateways. Returns the programs to release."""
        out: list[OutgoingMessage] = []
        with self._lock:
            left = tuple(self._installed.pop((deployment, epoch), {}).values())
            self._batches.pop((deployment, epoch), None)
            for message, _, _ in self._expected.pop((deployment, epoch), []):
                out.append(_stale(message, "this device has left that epoch"))
            for task in [t for t in self._tasks.values() if (t.deployment, t.epoch) == (deployment, epoch)]:
                out.append(self._fail(task, "this device has left that epoch", stale=True))
            self._sequences.retire(deployment, epoch)
            self._close_idle(parent_of(deployment))
            if all(name != deployment for name, _ in self._installed):
                self._counters.forget(deployment)
        self._post(out)
        return [one.prepared for one in left]

    # Requests

    def deliver(self, message: Tensors, values: Sequence[Value], source: str = "") -> None:
        """Take a transfer's pieces for a request. They are kept as they are and must not be changed afterwards.

        Never raises for what a peer sent: a request whose pieces do not fit goes back to its gateway as Failed."""
        nbytes = 0
        for value in values:
            if type(value) is not np.ndarray:
                restore_array(value)  # Before the lock is taken: no other thread waits for it.
            nbytes += value_bytes(value)
        with self._lock:
            received = self._counters.received_bytes
            received[source] = received.get(source, 0) + nbytes
            out = self._take(message, values, source)
            task = self._tasks.get(message.request)
            if task is not None and self._is_ready(task):
                # Only when it is ready: of several transfers that a step needs, the last one wakes the thread.
                lane = self._lanes[task.lane]
                lane.unblocked = message.request, message.transfer
                lane.wake()
        if out:
            self._post(out)

    def cancel(self, request: str) -> None:
        """Forget a request, and ignore its frames that come later."""
        with self._lock:
            if (task := self._tasks.get(request)) is not None:
                self._end(task)
            self._remember(request, None)

    def end_sequence(self, sequence: str) -> None:
        """Drop what is kept of a sequence, and its steps under way."""
        with self._lock:
            for task in list(self._tasks.values()):
                if any(key[2] == sequence for key in task.by_sequence):
                    self._end(task)
            self._sequences.end(sequence)

    def lost(self, node: str) -> None:
        """Handle a broken connection with `node`, whose frames in either direction may be lost. Requests and sequences of
        that gateway are dropped. Other requests that use that link, or ended lately and used it, go back to their
        gateways, which know what is answered already."""
        out: list[OutgoingMessage] = []
        with self._lock:
            self._sequences.lose(node)
            for task in list(self._tasks.values()):
                if gateway_of(task.request) == node:
                    self._end(task)
                elif node in task.installed.peers:
                    out.append(self._fail(task, f"the connection with node {node} broke", stale=True))
            since = time.monotonic() - self._limits.remembered_s
            for ended in [one for one in self._ended.values() if one and one.at_s > since]:
                if node in ended.peers and gateway_of(ended.request) != node:
                    self._ended[ended.request] = None
                    out.append(_stale(ended, f"the connection with node {node} broke"))
        self._post(out)

    # Statistics

    def counters(self) -> Counters:
        """A copy of the totals, which no longer changes."""
        with self._lock:
            now = self._counters
            segments = {key: replace(t, recent_s=t.recent_s.copy()) for key, t in now.segments.items()}
            return Counters(
                now.requests_done,
                now.requests_failed,
                segments,
                dict(now.sent_bytes),
                dict(now.received_bytes),
                {name: replace(tally) for name, tally in now.rounding.items()},
            )

    def count_sequences(self) -> tuple[int, int, int]:
        """The number of sequences whose states are kept here, the bytes of these states, and the number of sequences that
        were dropped to make room for others."""
        with self._lock:
            return len(self._sequences), self._sequences.nbytes, self._sequences.evictions

    def continued_sequences(self, lately_s: float) -> dict[tuple[str, Epoch], int]:
        """The deployments and epochs of sequences that were continued here in the last `lately_s` seconds, each with the
        furthest position."""
        with self._lock:
            return self._sequences.continued(time.monotonic() - lately_s)

    def count_waiting(self) -> tuple[int, int]:
        """The number of requests under way, and the bytes of the pieces that they hold."""
        with self._lock:
            return len(self._tasks), self._held_bytes()

    @property
    def computes(self) -> bool:
        """Whether all compute threads are alive; the watchdog asks. A thread whose step never ends is alive: the step ends
        with its request."""
        with self._lock:
            lanes = list(self._lanes.values())
            return self._stopping or all(lane.thread is not None and lane.thread.is_alive() for lane in lanes)

    # Under the lock

    def _take(self, message: Tensors, values: Sequence[Value], source: str) -> list[OutgoingMessage]:
        task = self._tasks.get(message.request)
        if task is None:
            if message.request in self._ended:
                return []
            key = (message.deployment, message.epoch)
            if key in self._expected:
                return self._take_early(key, message, values, source)
            kind = kind_of(message)
            installed = self._installed.get(key, {}).get(kind)
            if installed is None and key in self._installed:
                return [
                    _stale(
                        message, f"this device makes no {kind.value} steps by this plan now", lost_state=True
                    )
                ]
            if installed is None:
                return [_stale(message, "this device has left that epoch, or does not know it")]
            if not may_send(installed, message, source):
                return []
            nbytes = sum(map(value_bytes, values))
            if self._tasks and self._is_full(nbytes):
                self._remember(message.request, None)
                return [_stale(message, "this device has too many requests under way")]
            progress = Progress(installed.schedule)
            task = RequestTask(
                *key,
                message.request,
                installed,
                progress,
                message.exact,
                steps_of(message),
                kind,
                message.likely,
                time.monotonic(),
            )
            self._tasks[message.request] = task
            if task.exact:
                self._trials.add(message.request)
        try:
            check_same_request(task, message)
            if not may_send(task.installed, message, source):
                return []
            if message.transfer != START_TRANSFER:
                task.progress.keep_pieces(message.transfer, values)
        except FrameError as error:
            log.warning("request %s: %s", message.request, error)
            return [self._fail(task, str(error), stale=False)]
        return []

    def _take_early(
        self, key: PlanId, message: Tensors, values: Sequence[Value], source: str
    ) -> list[OutgoingMessage]:
        early = self._expected[key]
        if len(early) >= self._limits.early_frames:
            return [_stale(message, "this device is still preparing that epoch")]
        early.append((message, values, source))
        return []

    def _is_ready(self, task: RequestTask) -> bool:
        """Whether the request can continue now."""
        return task.progress.ready if task.progress.begun else not self._awaits_step(task)

    def _awaits_step(self, task: RequestTask) -> bool:
        """Whether the step of a sequence before this request is still under way here."""
        mine = task.by_sequence
        return any(
            step.after == mine[key].position
            for other in self._tasks.values()
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
            busy = self._busy_sequences()
            batch = self._batches.get((task.deployment, task.epoch))
            task.began = self._sequences.begin(key, step, prepared, now, busy, batch)
            task.progress.begin(task.began)
        if not steps:
            task.progress.begin(make_first_states(prepared))

    def _busy_sequences(self) -> set[SequenceKey]:
        """The sequences whose steps are under way."""
        return {key for one in self._tasks.values() if one.progress.begun for key in one.by_sequence}

    def _usual_program(self, key: PlanId) -> RunnableProgram | None:
        installed = self._installed.get(key)
        return installed[StepKind.USUAL].prepared if installed is not None else None

    def _is_full(self, more_bytes: int) -> bool:
        too_many = len(self._tasks) >= self._limits.requests
        return too_many or self._held_bytes() + more_bytes > self._limits.nbytes

    def _held_bytes(self) -> int:
        return sum(task.progress.held_bytes for task in self._tasks.values())

    def _fail(self, task: RequestTask, error: str, *, stale: bool, **flags: bool) -> OutgoingMessage:
        """End the task, and tell its gateway. `flags` are further fields of Failed."""
        self._end(task)
        self._counters.requests_failed += 1
        failed = Failed(task.deployment, task.epoch, task.request, stale, error, **flags)
        return gateway_of(task.request), failed, ()

    def _end(self, task: RequestTask) -> None:
        del self._tasks[task.request]
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

    def _next(self, lane: Lane, now: float) -> tuple[RequestTask, ReadyStep | EdgepartError] | None:
        """The step of the oldest request that can continue, if it belongs to this lane, or the error that keeps it from
        beginning; otherwise the lane that it belongs to is woken."""
        if len(self._lanes) > 1 and any(one.has_turn(now) for one in self._lanes.values() if one is not lane):
            return None
        for task in self._in_order():
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
                self._finish(task)
        return None

    def _in_order(self) -> list[RequestTask]:
        """The requests under way, in the order of their turns: as they came, but those that try a plan later."""
        tasks = list(self._tasks.values())
        if self._trials:  # Otherwise they lie in this order.
            tasks.sort(key=attrgetter("counts_from_s"))
        return tasks

    def _finish(self, task: RequestTask) -> None:
        prepared, now = task.installed.prepared, time.monotonic()
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
        self._remember(
            task.request, EndedRequest(task.deployment, task.epoch, task.request, peers, time.monotonic())
        )
        self._counters.requests_done += 1

    # Lanes

    def _open(self, name: str) -> None:
        if name not in self._lanes:
            lane = self._lanes[name] = Lane(name, self._lock)
            if self._started:
                self._begin(lane)

    def _begin(self, lane: Lane) -> None:
        started = lane.start(partial(self._work, lane), COMPUTE_THREAD)
        self._threads = [thread for thread in self._threads if thread.is_alive()] + [started]

    def _close_idle(self, name: str) -> None:
        """End the deployment's thread if nothing of that deployment is installed any more."""
        if not any(parent_of(deployment) == name for deployment, _ in self._installed):
            lane = self._lanes.pop(name, None)
            if lane is not None:
                lane.wake()
                self._give_turn(lane)

    def _is_open(self, lane: Lane) -> bool:
        return not self._stopping and self._lanes.get(lane.name) is lane

    def _give_turn(self, lane: Lane) -> None:
        """Wake the other lanes, which may have waited for this one."""
        for other in self._lanes.values():
            if other is not lane:
                other.wake()

    # The compute threads

    def _work(self, lane: Lane) -> None:
        while True:
            with self._lock:
                job = None
                # A lane that was closed takes nothing: another lane of the same name may be open by now.
                while self._is_open(lane) and (job := self._next(lane, time.monotonic())) is None:
                    self._await(lane)
                if job is None:
                    return
                lane.task, lane.began_s = job[0], time.monotonic()
                if len(self._lanes) > 1:
                    # The others now wait for this step, but only for as long as it has the device to itself.
                    self._give_turn(lane)
            self._do(lane, *job)

    def _await(self, lane: Lane) -> None:
        """Wait until the lane is woken, or until a step of another lane has taken so long that it must share the device.
        The wait is recorded as one of the lane's oldest request."""
        task, missing = None, frozenset[int]()
        for one in self._in_order():
            if one.lane == lane.name:
                task, missing = one, one.progress.missing
                break
        began_s = self._recorder.now() if self._recorder.on else None
        lane.wait(self._patience_s(lane), self._connections(task, missing) if task is not None else ())
        if task is None or not missing or began_s is None:
            return
        request, last = lane.unblocked
        awaited = (
            last if request == task.request and last in task.installed.schedule.incoming else min(missing)
        )
        node = task.installed.senders.get(awaited, "")
        self._recorder.add(COMPUTING, WAIT, began_s, task.subject, "", node, awaited)

    def _patience_s(self, lane: Lane) -> float | None:
        """Seconds until the step of another lane has had the device to itself for long enough; None if there is none."""
        if len(self._lanes) == 1:
            return None
        now = time.monotonic()
        turns = [one.began_s for one in self._lanes.values() if one is not lane and one.has_turn(now)]
        return min(turns) + EXCLUSIVE_STEP_S - now if turns else None

    def _connections(self, task: RequestTask, missing: frozenset[int]) -> tuple[BorrowedConnection, ...]:
        """The connections on which the transfers come that the request waits for, if the compute thread may as well read
        them itself."""
        installed = task.installed
        if not missing.isdisjoint(installed.large):
            return ()
        if len(missing) == 1:  # Nearly always.
            found = self._data_from(task.sender_of(*missing))
            return (found,) if found is not None else ()
        nodes = {task.sender_of(one) for one in missing}
        return tuple(one for node in nodes if (one := self._data_from(node)) is not None)

    def _do(self, lane: Lane, task: RequestTask, work: ReadyStep | EdgepartError) -> None:
        """Do one step of one request. An error fails that request only; the thread goes on."""
        try:
            if isinstance(work, EdgepartError):
                raise work
            following: ReadyStep | None = work
            while following is not None:
                following = self._do_step(lane, task, following)
            return
        except EdgepartError as error:
            fault = str(error)
            flags = {
                "stale": isinstance(error, ClusterError),
                "crashed": isinstance(error, WorkerDied),
                "lost_state": isinstance(error, StateLost),
                "no_room": error is work and isinstance(error, Unavailable),
            }
        except Exception as error:
            log.exception("request %s of %s", task.request, task.deployment)
            flags = {"stale": False}
            fault = f"{type(error).__name__}: {error}"
        with self._lock:
            self._step_ended(lane)
            current = self._tasks.get(task.request) is task
            out = [self._fail(task, fault, **flags)] if current else []
        self._post(out)

    def _do_step(self, lane: Lane, task: RequestTask, work: ReadyStep) -> ReadyStep | None:
        """Do the step. If the next one is a Send that can be done, return it, as others wait for it."""
        began_s = time.monotonic()
        outputs = self._record_step(task, work) if self._recorder.on else self._act(task, work)
        with self._lock:
            if type(work.step) is Run and (task.deployment, task.epoch) in self._installed:
                self._count_run(task, work.step.segment, time.monotonic() - began_s)
            if self._tasks.get(task.request) is task:
                progress = task.progress
                progress.done(outputs)
                if (following := progress.next_send()) is not None:
                    return following
                if progress.finished:
                    self._finish(task)
            self._step_ended(lane)
        return None

    def _step_ended(self, lane: Lane) -> None:
        lane.task = None
        if len(self._lanes) > 1:
            self._give_turn(lane)

    def _act(self, task: RequestTask, work: ReadyStep) -> Sequence[Value]:
        """Run the step's segment, or send its transfer; returns a Run's outputs."""
        values = work.values(task.installed.scratch)
        if type(work.step) is Run:
            return self._run(task, work, values)
        self._send_pieces(task, work, values)
        return ()

    def _record_step(self, task: RequestTask, work: ReadyStep) -> Sequence[Value]:
        """Do the step, and record how long its parts took."""
        step, recorder = work.step, self._recorder
        began_s = recorder.now()
        values = work.values(task.installed.scratch)
        made_s = recorder.now()
        if work.work.held is None:
            nbytes = sum(map(value_bytes, values))
            recorder.add(COMPUTING, COPY, began_s, task.subject, nbytes=nbytes, ended_s=made_s)
        if isinstance(step, Run):
            outputs = self._run(task, work, values)
            segment = task.installed.prepared.program.segments[step.segment]
            recorder.add(COMPUTING, COMPUTE, made_s, task.subject, describe_segment(segment))
            return outputs
        node, nbytes = self._send_pieces(task, work, values)
        node = "" if task.installed.schedule.outgoing[step.transfer].target == GATEWAY else node
        recorder.add(COMPUTING, SEND, made_s, task.subject, "", node, step.transfer, nbytes)
        return ()

    def _run(self, task: RequestTask, work: ReadyStep, values: Sequence[Value]) -> Sequence[Value]:
        assert isinstance(work.step, Run)
        return task.installed.prepared.run(
            work.step.segment, values, lambda: task.request in self._tasks, work.overwrites
        )

    def _send_pieces(self, task: RequestTask, work: ReadyStep, values: Sequence[Value]) -> tuple[str, int]:
        """Send the pieces of a transfer: rounded if the plan says so, only what is likely if the gateway wants no more.
        Returns the node that they go to, and their bytes."""
        assert isinstance(work.step, Send)
        installed = task.installed
        transfer = installed.schedule.outgoing[work.step.transfer]
        node = task.gateway if transfer.target == GATEWAY else installed.nodes[transfer.target]
        if task.likely and transfer.target == GATEWAY:
            values = [keep_likely(value, task.likely) for value in values]
        elif transfer.dtypes and not task.exact:
            values = self._round(task, transfer.dtypes, values)
        message = Tensors(
            task.deployment, task.epoch, task.request, transfer.number, (), task.exact, *task.fields
        )
        self._send(node, message, values)
        nbytes = 0
        for value in values:
            nbytes += value_bytes(value)
        with self._lock:
            sent = self._counters.sent_bytes
            sent[node] = sent.get(node, 0) + nbytes
        return node, nbytes

    def _round(self, task: RequestTask, kinds: tuple[str, ...], values: Sequence[Value]) -> list[Value]:
        found = round_all(kinds, values)
        with self._lock:
            if (task.deployment, task.epoch) in self._installed:
                self._counters.rounding.setdefault(task.deployment, RoundingTally()).count(kinds, found)
        return found

    def _count_run(self, task: RequestTask, segment: int, took_s: float) -> None:
        """Count the time of the whole step, because that is what the planner predicts: putting the inputs together,
        running the segment and keeping its outputs."""
        timed_as = task.installed.prepared.program.segments[segment].timed_as
        times = self._counters.segments.get((task.deployment, timed_as))
        if times is None:
            times = self._counters.segments[task.deployment, timed_as] = SegmentTime()
        times.runs += 1
        times.total_s += took_s
        times.least_s = min(times.least_s, took_s)
        times.recent_s.append(took_s)

    def _post(self, out: list[OutgoingMessage]) -> None:
        """Send `out`. The caller must not hold the lock, as the other end may be this device."""
        unsent: dict[str, list[ClusterError]] = {}
        for node, message, values in out:
            try:
                self._send(node, message, values)
            except ClusterError as error:
                unsent.setdefault(node, []).append(error)
        for node, errors in unsent.items():  # One line for all requests that a lost device had under way.
            log.info("cannot send %s to node %s: %s", format_count(len(errors), "message"), node, errors[0])


def _stale(about: Tensors | EndedRequest, error: str, *, lost_state: bool = False) -> OutgoingMessage:
    failed = Failed(about.deployment, about.epoch, about.request, True, error, lost_state=lost_state)
    return gateway_of(about.request), failed, ()
