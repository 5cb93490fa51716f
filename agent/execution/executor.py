"""Executor: runs this device's programs. A door: one compute thread for each deployment, which is woken and never polls.

Requests come and go by frames: `deliver` is called from reader threads and by the local gateway, with arrays
that it keeps and nobody changes. The oldest request that can go on goes on; while one waits for a halo,
another computes. One deployment computes at a time; only a run that takes long shares the device with the others, so that
one that never ends holds up nobody else. What is sent goes to the function given, which must not block for long: it hands
frames to sender threads.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition, RLock, Thread

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.prepared import RunnableProgram, describe
from edgepart.agent.execution.schedule import DeviceSchedule, Progress, ReadyStep, make_schedule
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import COMPUTE, COMPUTING, COPY, SEND, WAIT, Subject
from edgepart.agent.wire.inference import Cancel, Epoch, Failed, Tensors
from edgepart.agent.wire.reduced_precision import RoundingTally, restored, round_all
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.errors import ClusterError, EdgepartError, FrameError, InternalError, WorkerDied
from edgepart.planner.plans.plan import GATEWAY, Run, Transfer
from edgepart.planner.plans.plan import Send as Dispatch

log = logging.getLogger(__name__)

Send = Callable[[str, Tensors | Failed | Cancel, Sequence[Value]], None]
"""send(node id, message, values): to a member or to this device itself. A Tensors' `arrays` is left () for
the sender to fill in while packing `values`. Raises ClusterError where the node cannot be reached."""

Key = tuple[str, Epoch]
"""Deployment and epoch: one installed program."""

COMPUTE_THREAD = "edgepart-compute"
PATIENCE_S = 1.0
"""For how long a step has the device to itself. Longer: deployments disturb each other less; shorter: they wait less for
a step that takes long, or for ever."""

RECENT_RUNS = 31
"""Of a segment; enough for a median that a few disturbed ones do not move."""

START = -1
"""In `Tensors.transfer`, without arrays: from the gateway to a device whose program receives nothing."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What may wait here at once. Over it a request is handed back to its gateway, which tries again
    later."""

    requests: int = 1024
    """Requests under way. More: more memory at worst; fewer: bursts are handed back sooner."""
    nbytes: int = 1 << 30
    """Bytes of pieces held; a single request may go over it (the plan was checked against the device's
    memory)."""
    early_frames: int = 256
    """Frames kept for an epoch that is still being prepared."""
    remembered: int = 2048
    """Ended requests whose late frames are known as such."""
    remembered_s: float = 60.0
    """For how long an ended request may be run again because a link that it was sent over broke."""


@dataclass(slots=True)
class SegmentTime:
    """What runs of one segment took here."""

    runs: int = 0
    total_s: float = 0.0
    least_s: float = float("inf")
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_RUNS))
    """What the last ones took."""


@dataclass(slots=True)
class Counters:
    """What this executor did since it was made."""

    requests_done: int = 0
    requests_failed: int = 0
    segments: dict[tuple[str, str], SegmentTime] = field(default_factory=dict)
    """By deployment and segment digest."""
    sent_bytes: dict[str, int] = field(default_factory=dict)
    """By node id."""
    received_bytes: dict[str, int] = field(default_factory=dict)
    """By node id; "" where the deliverer did not say."""
    rounding: dict[str, RoundingTally] = field(default_factory=dict)
    """By deployment."""


@dataclass(frozen=True)
class _Installed:
    prepared: RunnableProgram
    schedule: DeviceSchedule
    nodes: Mapping[str, str]
    peers: frozenset[str]
    """Node ids that its transfers come from or go to."""
    scratch: Scratch
    """The compute thread's."""


@dataclass(eq=False)
class _Task:
    """One request under way here."""

    deployment: str
    epoch: Epoch
    request: str
    installed: _Installed
    progress: Progress
    exact: bool = False
    """Whether nothing of it is to be rounded."""

    @property
    def lane(self) -> str:
        return parent_of(self.deployment)

    @property
    def subject(self) -> Subject:
        return Subject(self.deployment, self.epoch, self.request)


@dataclass(eq=False)
class _Lane:
    """What computes one deployment, with all its variants and epochs."""

    name: str
    changed: Condition
    """Of the executor's lock."""
    thread: Thread | None = None
    task: _Task | None = None
    """Whose step is being done."""
    began_s: float = 0.0
    """Since when."""
    unblocked: tuple[str, int] = ("", START)
    """The request and the transfer that woke the thread last."""

    def has_turn(self, now: float) -> bool:
        """Whether others have to wait for it."""
        return self.task is not None and now < self.began_s + PATIENCE_S


@dataclass(frozen=True, slots=True)
class _Ended:
    """A request that was done here, as long as it may be asked for again; holds no program."""

    deployment: str
    epoch: Epoch
    request: str
    peers: frozenset[str]
    at_s: float


def gateway_of(request: str) -> str:
    """The node id in a request's name: who holds it.

    >>> gateway_of("00ff00ff00ff00ff/5e8f10a2/17-9c01d3be5f7a2260")
    '00ff00ff00ff00ff'
    """
    return request.partition("/")[0]


Parcel = tuple[str, Tensors | Failed | Cancel, Sequence[Value]]
"""What `Send` takes."""


class Executor:
    """Programs installed here, the requests under way in them, and the threads that compute. Thread-safe."""

    def __init__(
        self, send: Send, limits: QueueLimits | None = None, recorder: Recorder | None = None
    ) -> None:
        self._send = send
        self._limits = limits or QueueLimits()
        self._recorder = recorder or Recorder()
        self._installed: dict[Key, _Installed] = {}
        self._expected: dict[Key, list[tuple[Tensors, Sequence[Value], str]]] = {}
        self._tasks: dict[str, _Task] = {}
        self._ended: OrderedDict[str, _Ended | None] = OrderedDict()
        self._counters = Counters()
        self._lock = RLock()
        self._lanes: dict[str, _Lane] = {}
        self._threads: list[Thread] = []
        self._started = False
        self._stopping = False

    def start(self) -> None:
        with self._lock:
            self._started = True
            for lane in self._lanes.values():
                self._begin(lane)

    def stop(self, wait_s: float = 3.0) -> None:
        """Let the steps under way end, or leave them behind after `wait_s`; requests that are not done are dropped (their
        gateways see us leave)."""
        until = time.monotonic() + wait_s
        with self._lock:
            self._stopping = True
            for lane in self._lanes.values():
                lane.changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    # Programs

    def expect(self, deployment: str, epoch: Epoch) -> None:
        """Its program is being prepared: keep frames that come early, until `install` or `retire`."""
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
    ) -> None:
        """Take requests of that epoch from now on. `transfers` are the plan's; `nodes` gives the node id for
        each device's name. InternalError if the program cannot be followed, or is installed already."""
        schedule = make_schedule(prepared.program, transfers, prepared.dtypes, prepared.kept)
        ends = {t.source for t in schedule.incoming.values()} | {t.target for t in schedule.outgoing.values()}
        if unknown := ends - set(nodes) - {GATEWAY}:
            raise InternalError(f"plan of {deployment}: no node id given for devices {sorted(unknown)}")
        peers = frozenset(nodes[name] for name in ends - {GATEWAY})
        with self._lock:
            if (deployment, epoch) in self._installed:
                raise InternalError(f"{deployment} {epoch} is installed already")
            scratch = prepared.scratch()
            self._installed[deployment, epoch] = _Installed(prepared, schedule, dict(nodes), peers, scratch)
            self._open(parent_of(deployment))
            early = self._expected.pop((deployment, epoch), [])
        for message, values, source in early:
            self.deliver(message, values, source)

    def retire(self, deployment: str, epoch: Epoch) -> RunnableProgram | None:
        """Leave that epoch: what is under way goes back to its gateways. Returns what to release, if
        anything."""
        out: list[Parcel] = []
        with self._lock:
            installed = self._installed.pop((deployment, epoch), None)
            for message, _, _ in self._expected.pop((deployment, epoch), []):
                out.append(_stale(message, "this device has left that epoch"))
            for task in [t for t in self._tasks.values() if (t.deployment, t.epoch) == (deployment, epoch)]:
                out.append(self._fail(task, "this device has left that epoch", stale=True))
            self._close_idle(parent_of(deployment))
        self._post(out)
        return installed.prepared if installed else None

    # Requests

    def deliver(self, message: Tensors, values: Sequence[Value], source: str = "") -> None:
        """A transfer's pieces for a request. They are kept as they are and must not be changed afterwards.

        Never raises for what a peer sent: what does not fit goes back to the request's gateway as Failed."""
        for value in values:
            restored(value)  # Here, and not in the compute thread or while others wait.
        with self._lock:
            received = self._counters.received_bytes
            received[source] = received.get(source, 0) + sum(map(value_bytes, values))
            out = self._take(message, values, source)
            task = self._tasks.get(message.request)
            if task is not None and task.progress.ready:
                # Only then: of several pieces that a step needs, the last one wakes the thread.
                lane = self._lanes[task.lane]
                lane.unblocked = message.request, message.transfer
                lane.changed.notify()
        self._post(out)

    def cancel(self, request: str) -> None:
        """Forget a request, and know its late frames as such."""
        with self._lock:
            if (task := self._tasks.get(request)) is not None:
                self._end(task)
            self._remember(request, None)

    def lost(self, node: str) -> None:
        """The connection with `node` broke: frames to or from it may be gone. Its own requests are dropped;
        others that went over that link, also lately, go back to their gateways, which know what is answered
        already."""
        out: list[Parcel] = []
        with self._lock:
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

    # What others may know

    def counters(self) -> Counters:
        """A copy."""
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

    def waiting(self) -> tuple[int, int]:
        """Requests under way, and the bytes that they hold."""
        with self._lock:
            return len(self._tasks), self._held_bytes()

    @property
    def computes(self) -> bool:
        """Whether all its threads are there: for the watchdog. A step that takes for ever ends with its request."""
        with self._lock:
            lanes = list(self._lanes.values())
            return self._stopping or all(lane.thread is not None and lane.thread.is_alive() for lane in lanes)

    # Under the lock

    def _take(self, message: Tensors, values: Sequence[Value], source: str) -> list[Parcel]:
        if message.request in self._ended:
            return []
        task = self._tasks.get(message.request)
        if task is None:
            key = (message.deployment, message.epoch)
            if key in self._expected:
                return self._take_early(key, message, values, source)
            installed = self._installed.get(key)
            if installed is None:
                return [_stale(message, "this device has left that epoch, or does not know it")]
            if not _may_send(installed, message, source):
                return []
            nbytes = sum(map(value_bytes, values))
            if self._tasks and self._is_full(nbytes):
                self._remember(message.request, None)
                return [_stale(message, "this device has too many requests under way")]
            task = _Task(*key, message.request, installed, Progress(installed.schedule), message.exact)
            self._tasks[message.request] = task
        try:
            if (message.deployment, message.epoch) != (task.deployment, task.epoch):
                raise FrameError(f"request {message.request} is of {task.deployment} {task.epoch}")
            if not _may_send(task.installed, message, source):
                return []
            if message.transfer != START:
                task.progress.arrived(message.transfer, values)
        except FrameError as error:
            log.warning("request %s: %s", message.request, error)
            return [self._fail(task, str(error), stale=False)]
        return []

    def _take_early(self, key: Key, message: Tensors, values: Sequence[Value], source: str) -> list[Parcel]:
        early = self._expected[key]
        if len(early) >= self._limits.early_frames:
            return [_stale(message, "this device is still preparing that epoch")]
        early.append((message, values, source))
        return []

    def _is_full(self, more_bytes: int) -> bool:
        too_many = len(self._tasks) >= self._limits.requests
        return too_many or self._held_bytes() + more_bytes > self._limits.nbytes

    def _held_bytes(self) -> int:
        return sum(task.progress.held_bytes for task in self._tasks.values())

    def _fail(self, task: _Task, error: str, *, stale: bool, crashed: bool = False) -> Parcel:
        self._end(task)
        self._counters.requests_failed += 1
        failed = Failed(task.deployment, task.epoch, task.request, stale, error, crashed)
        return gateway_of(task.request), failed, ()

    def _end(self, task: _Task) -> None:
        del self._tasks[task.request]
        self._remember(task.request, None)
        lane = self._lanes.get(task.lane)
        if lane is not None and lane.task is task:
            task.installed.prepared.stop()

    def _remember(self, request: str, ended: _Ended | None) -> None:
        self._ended[request] = ended
        while len(self._ended) > self._limits.remembered:
            self._ended.popitem(last=False)

    def _next(self, lane: _Lane, now: float) -> tuple[_Task, ReadyStep] | None:
        """The oldest request's step that can be done now, if it is for this lane to do."""
        if any(other.has_turn(now) for other in self._lanes.values() if other is not lane):
            return None
        for task in list(self._tasks.values()):
            if task.lane != lane.name:
                other = self._lanes.get(task.lane)
                if other is not None and other.task is None and task.progress.ready:
                    other.changed.notify()
                    return None
                continue
            work = task.progress.next_work()
            if work is not None:
                return task, work
            if task.progress.finished:
                self._finish(task)
        return None

    def _finish(self, task: _Task) -> None:
        self._end(task)
        peers = task.installed.peers
        self._remember(
            task.request, _Ended(task.deployment, task.epoch, task.request, peers, time.monotonic())
        )
        self._counters.requests_done += 1

    # Lanes

    def _open(self, name: str) -> None:
        if name not in self._lanes:
            lane = self._lanes[name] = _Lane(name, Condition(self._lock))
            if self._started:
                self._begin(lane)

    def _begin(self, lane: _Lane) -> None:
        lane.thread = Thread(target=self._work, args=[lane], name=COMPUTE_THREAD, daemon=True)
        self._threads = [thread for thread in self._threads if thread.is_alive()] + [lane.thread]
        lane.thread.start()

    def _close_idle(self, name: str) -> None:
        """Where nothing of that deployment is installed any more its thread ends."""
        if not any(parent_of(deployment) == name for deployment, _ in self._installed):
            lane = self._lanes.pop(name, None)
            if lane is not None:
                lane.changed.notify_all()
                self._give_turn(lane)

    def _is_open(self, lane: _Lane) -> bool:
        return not self._stopping and self._lanes.get(lane.name) is lane

    def _give_turn(self, lane: _Lane) -> None:
        """Others may have waited for this one."""
        for other in self._lanes.values():
            if other is not lane:
                other.changed.notify()

    # The compute threads

    def _work(self, lane: _Lane) -> None:
        while True:
            with self._lock:
                job = None
                # A lane that was closed takes nothing: another one of its name may be open by now.
                while self._is_open(lane) and (job := self._next(lane, time.monotonic())) is None:
                    self._await(lane)
                if job is None:
                    return
                lane.task, lane.began_s = job[0], time.monotonic()
                if len(self._lanes) > 1:
                    self._give_turn(
                        lane
                    )  # they wait for this step now, and no longer than it has the device to itself
            self._do(lane, *job)

    def _await(self, lane: _Lane) -> None:
        """Until something comes, or a step has taken so long that it is to share the device. It is for the oldest request
        that this thread waits."""
        turns = [o.began_s + PATIENCE_S for o in self._lanes.values() if o is not lane and o.task is not None]
        later = [at for at in turns if at > time.monotonic()]
        patience_s = max(0.0, min(later) - time.monotonic()) if later else None
        mine = (one for one in self._tasks.values() if one.lane == lane.name)
        task = next(mine, None) if self._recorder.on else None
        awaited = task.progress.awaited if task else None
        if task is None or awaited is None:
            lane.changed.wait(patience_s)
            return
        began_s = self._recorder.now()
        lane.changed.wait(patience_s)
        request, last = lane.unblocked
        if request == task.request:
            awaited = task.installed.schedule.incoming.get(last, awaited)
        source = awaited.source
        node = task.installed.nodes[source] if source != GATEWAY else ""
        self._recorder.add(COMPUTING, WAIT, began_s, task.subject, "", node, awaited.number)

    def _do(self, lane: _Lane, task: _Task, work: ReadyStep) -> None:
        """One step of one request; whatever goes wrong is that request's, and the thread goes on."""
        began_s = time.monotonic()
        try:
            outputs = self._step(task, work)
            with self._lock:
                self._step_ended(lane)
                if self._tasks.get(task.request) is task:
                    task.progress.done(outputs)
                    if task.progress.finished:
                        self._finish(task)
                if isinstance(work.step, Run):
                    self._count_run(task, work.step.segment, time.monotonic() - began_s)
            return
        except EdgepartError as error:
            fault, stale, crashed = str(error), isinstance(error, ClusterError), isinstance(error, WorkerDied)
        except Exception as error:
            log.exception("request %s of %s", task.request, task.deployment)
            fault, stale, crashed = f"{type(error).__name__}: {error}", False, False
        with self._lock:
            self._step_ended(lane)
            current = self._tasks.get(task.request) is task
            out = [self._fail(task, fault, stale=stale, crashed=crashed)] if current else []
        self._post(out)

    def _step_ended(self, lane: _Lane) -> None:
        lane.task = None
        if len(self._lanes) > 1:
            self._give_turn(lane)

    def _step(self, task: _Task, work: ReadyStep) -> list[Value]:
        if self._recorder.on:
            return self._recorded(task, work)
        return self._act(task, work.step, self._values(task, work))

    def _values(self, task: _Task, work: ReadyStep) -> list[Value]:
        """A Run's inputs, or a Send's pieces as they are to travel."""
        values = work.values(task.installed.scratch)
        if task.exact or isinstance(work.step, Run):
            return values
        kinds = task.installed.schedule.outgoing[work.step.transfer].dtypes
        if not kinds:
            return values
        found = round_all(kinds, values)
        with self._lock:
            self._counters.rounding.setdefault(task.deployment, RoundingTally()).count(kinds, found)
        return found

    def _recorded(self, task: _Task, work: ReadyStep) -> list[Value]:
        """The step, and how long its parts took."""
        began_s = self._recorder.now()
        values = self._values(task, work)
        made_s = self._recorder.now()
        if any(one.copies or one.crop is not None for one in work.recipes):
            nbytes = sum(map(value_bytes, values))
            self._recorder.add(COMPUTING, COPY, began_s, task.subject, nbytes=nbytes, ended_s=made_s)
        outputs = self._act(task, work.step, values)
        if isinstance(work.step, Run):
            segment = task.installed.prepared.program.segments[work.step.segment]
            self._recorder.add(COMPUTING, COMPUTE, made_s, task.subject, describe(segment))
        else:
            transfer = task.installed.schedule.outgoing[work.step.transfer]
            node = task.installed.nodes[transfer.target] if transfer.target != GATEWAY else ""
            nbytes = sum(map(value_bytes, values))
            self._recorder.add(COMPUTING, SEND, made_s, task.subject, "", node, transfer.number, nbytes)
        return outputs

    def _act(self, task: _Task, step: Run | Dispatch, values: Sequence[Value]) -> list[Value]:
        installed = task.installed
        if isinstance(step, Run):
            return installed.prepared.run(step.segment, values, lambda: task.request in self._tasks)
        transfer = installed.schedule.outgoing[step.transfer]
        node = installed.nodes[transfer.target] if transfer.target != GATEWAY else gateway_of(task.request)
        message = Tensors(task.deployment, task.epoch, task.request, transfer.number, (), exact=task.exact)
        self._send(node, message, values)
        with self._lock:
            sent = self._counters.sent_bytes
            sent[node] = sent.get(node, 0) + sum(map(value_bytes, values))
        return []

    def _count_run(self, task: _Task, segment: int, took_s: float) -> None:
        """All that the step took is what the planner predicts: putting together what came, and keeping what came out."""
        digest = task.installed.prepared.program.segments[segment].digest
        times = self._counters.segments.setdefault((task.deployment, digest), SegmentTime())
        times.runs += 1
        times.total_s += took_s
        times.least_s = min(times.least_s, took_s)
        times.recent_s.append(took_s)

    def _post(self, out: list[Parcel]) -> None:
        """Send without the lock held: the other end may be this device."""
        for node, message, values in out:
            try:
                self._send(node, message, values)
            except ClusterError as error:
                log.info("cannot tell node %s: %s", node, error)


def _may_send(installed: _Installed, message: Tensors, source: str) -> bool:
    """Whether a frame comes from whom the plan says that it comes from; "" is not known, as in trials."""
    transfer = installed.schedule.incoming.get(message.transfer)
    by_gateway = transfer is None or transfer.source == GATEWAY
    expected = (
        gateway_of(message.request) if by_gateway or transfer is None else installed.nodes[transfer.source]
    )
    if not source or source == expected:
        return True
    log.warning("node %s sent data of a request that is not its to send", source)
    return False


def _stale(about: Tensors | _Ended, error: str) -> Parcel:
    return gateway_of(about.request), Failed(about.deployment, about.epoch, about.request, True, error), ()
