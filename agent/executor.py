"""Executor: runs this device's programs. A door: one compute thread, which is woken and never polls.

Requests come and go by frames: `deliver` is called from reader threads and by the local gateway, with arrays
that it keeps and nobody changes. The oldest request that can go on goes on; while one waits for a halo,
another computes. What is sent goes to the function given, which must not block for long: it hands frames to
sender threads.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition, Thread

from edgepart.agent.messages import Cancel, Epoch, Failed, Tensors
from edgepart.agent.recipes import Scratch
from edgepart.agent.recorder import Recorder
from edgepart.agent.rounding import RoundingTally, restored, round_all
from edgepart.agent.schedule import Progress, Schedule, Value, Work, make_schedule, value_bytes
from edgepart.agent.sessions import PreparedProgram, describe
from edgepart.agent.spans import COMPUTE, COMPUTING, COPY, SEND, WAIT, Subject
from edgepart.planner.errors import ClusterError, EdgepartError, FrameError, InternalError
from edgepart.planner.plan import GATEWAY, Run, Transfer
from edgepart.planner.plan import Send as Dispatch

log = logging.getLogger(__name__)

Send = Callable[[str, Tensors | Failed | Cancel, Sequence[Value]], None]
"""send(node id, message, values): to a member or to this device itself. A Tensors' `arrays` is left () for
the sender to fill in while packing `values`. Raises ClusterError where the node cannot be reached."""

Key = tuple[str, Epoch]
"""Deployment and epoch: one installed program."""

COMPUTE_THREAD = "edgepart-compute"

RECENT_RUNS = 31
"""Of a segment; enough for a median that a few disturbed ones do not move."""

START = -1
"""In `Tensors.transfer`, without arrays: from the gateway to a device whose program receives nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
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
    prepared: PreparedProgram
    schedule: Schedule
    nodes: Mapping[str, str]
    peers: frozenset[str]
    """Node ids that its transfers come from or go to."""
    scratch: Scratch = field(default_factory=Scratch)
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
    def subject(self) -> Subject:
        return Subject(self.deployment, self.epoch, self.request)


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

    >>> gateway_of("00ff00ff00ff00ff/k3j2/17")
    '00ff00ff00ff00ff'
    """
    return request.partition("/")[0]


Parcel = tuple[str, Tensors | Failed | Cancel, Sequence[Value]]
"""What `Send` takes."""


class Executor:
    """Programs installed here, the requests under way in them, and the thread that computes. Thread-safe."""

    def __init__(self, send: Send, limits: Limits | None = None, recorder: Recorder | None = None) -> None:
        self._send = send
        self._limits = limits or Limits()
        self._recorder = recorder or Recorder()
        self._installed: dict[Key, _Installed] = {}
        self._expected: dict[Key, list[tuple[Tensors, Sequence[Value], str]]] = {}
        self._tasks: dict[str, _Task] = {}
        self._ended: OrderedDict[str, _Ended | None] = OrderedDict()
        self._counters = Counters()
        self._changed = Condition()
        self._stopping = False
        self._unblocked = "", START
        """The request and the transfer that woke the compute thread last."""
        self._busy_since: float | None = None
        self._thread = Thread(target=self._work, name=COMPUTE_THREAD, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_s: float = 3.0) -> None:
        """Let the step under way end, or leave it behind after `wait_s`; requests that are not done are dropped (their
        gateways see us leave)."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    # Programs

    def expect(self, deployment: str, epoch: Epoch) -> None:
        """Its program is being prepared: keep frames that come early, until `install` or `retire`."""
        with self._changed:
            if (deployment, epoch) not in self._installed:
                self._expected.setdefault((deployment, epoch), [])

    def install(
        self,
        deployment: str,
        epoch: Epoch,
        prepared: PreparedProgram,
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
        with self._changed:
            if (deployment, epoch) in self._installed:
                raise InternalError(f"{deployment} {epoch} is installed already")
            self._installed[deployment, epoch] = _Installed(prepared, schedule, dict(nodes), peers)
            early = self._expected.pop((deployment, epoch), [])
        for message, values, source in early:
            self.deliver(message, values, source)

    def retire(self, deployment: str, epoch: Epoch) -> PreparedProgram | None:
        """Leave that epoch: what is under way goes back to its gateways. Returns what to release, if
        anything."""
        out: list[Parcel] = []
        with self._changed:
            installed = self._installed.pop((deployment, epoch), None)
            for message, _, _ in self._expected.pop((deployment, epoch), []):
                out.append(_stale(message, "this device has left that epoch"))
            for task in [t for t in self._tasks.values() if (t.deployment, t.epoch) == (deployment, epoch)]:
                out.append(self._fail(task, "this device has left that epoch", stale=True))
        self._post(out)
        return installed.prepared if installed else None

    # Requests

    def deliver(self, message: Tensors, values: Sequence[Value], source: str = "") -> None:
        """A transfer's pieces for a request. They are kept as they are and must not be changed afterwards.

        Never raises for what a peer sent: what does not fit goes back to the request's gateway as Failed."""
        for value in values:
            restored(value)  # Here, and not in the compute thread or while others wait.
        with self._changed:
            received = self._counters.received_bytes
            received[source] = received.get(source, 0) + sum(map(value_bytes, values))
            out = self._take(message, values, source)
            task = self._tasks.get(message.request)
            if task is not None and task.progress.ready:
                # Only then: of several pieces that a step needs, the last one wakes the thread.
                self._unblocked = message.request, message.transfer
                self._changed.notify()
        self._post(out)

    def cancel(self, request: str) -> None:
        """Forget a request, and know its late frames as such."""
        with self._changed:
            self._tasks.pop(request, None)
            self._remember(request, None)

    def lost(self, node: str) -> None:
        """The connection with `node` broke: frames to or from it may be gone. Its own requests are dropped;
        others that went over that link, also lately, go back to their gateways, which know what is answered
        already."""
        out: list[Parcel] = []
        with self._changed:
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
        with self._changed:
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
        with self._changed:
            return len(self._tasks), self._held_bytes()

    def stalled_s(self) -> float:
        """For how long the step under way has been going on: for the watchdog. 0 when there is none; inf when
        the compute thread is gone."""
        if not self._thread.is_alive() and not self._stopping:
            return float("inf")
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

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
            nbytes = sum(map(value_bytes, values))
            if self._tasks and self._is_full(nbytes):
                self._remember(message.request, None)
                return [_stale(message, "this device has too many requests under way")]
            task = _Task(*key, message.request, installed, Progress(installed.schedule), message.exact)
            self._tasks[message.request] = task
        try:
            if (message.deployment, message.epoch) != (task.deployment, task.epoch):
                raise FrameError(f"request {message.request} is of {task.deployment} {task.epoch}")
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

    def _fail(self, task: _Task, error: str, *, stale: bool) -> Parcel:
        self._end(task)
        self._counters.requests_failed += 1
        failed = Failed(task.deployment, task.epoch, task.request, stale, error)
        return gateway_of(task.request), failed, ()

    def _end(self, task: _Task) -> None:
        del self._tasks[task.request]
        self._remember(task.request, None)

    def _remember(self, request: str, ended: _Ended | None) -> None:
        self._ended[request] = ended
        while len(self._ended) > self._limits.remembered:
            self._ended.popitem(last=False)

    def _next(self) -> tuple[_Task, Work] | None:
        """The oldest request's step that can be done now."""
        for task in list(self._tasks.values()):
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

    # The compute thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy_since = None
                while (job := self._next()) is None and not self._stopping:
                    self._await()
                if self._stopping or job is None:
                    return
                self._busy_since = time.monotonic()
            self._do(*job)

    def _await(self) -> None:
        """Until something comes. It is for the oldest request that this thread waits."""
        task = next(iter(self._tasks.values()), None) if self._recorder.on else None
        awaited = task.progress.awaited if task else None
        if task is None or awaited is None:
            self._changed.wait()
            return
        began_s = self._recorder.now()
        self._changed.wait()
        request, last = self._unblocked
        if request == task.request:
            awaited = task.installed.schedule.incoming.get(last, awaited)
        source = awaited.source
        node = task.installed.nodes[source] if source != GATEWAY else ""
        self._recorder.add(COMPUTING, WAIT, began_s, task.subject, "", node, awaited.number)

    def _do(self, task: _Task, work: Work) -> None:
        """One step of one request; whatever goes wrong is that request's, and the thread goes on."""
        began_s = time.monotonic()
        try:
            outputs = self._step(task, work)
            with self._changed:
                if self._tasks.get(task.request) is task:
                    task.progress.done(outputs)
                    if task.progress.finished:
                        self._finish(task)
                if isinstance(work.step, Run):
                    self._count_run(task, work.step.segment, time.monotonic() - began_s)
            return
        except EdgepartError as error:
            fault, stale = str(error), isinstance(error, ClusterError)
        except Exception as error:
            log.exception("request %s of %s", task.request, task.deployment)
            fault, stale = f"{type(error).__name__}: {error}", False
        with self._changed:
            current = self._tasks.get(task.request) is task
            out = [self._fail(task, fault, stale=stale)] if current else []
        self._post(out)

    def _step(self, task: _Task, work: Work) -> list[Value]:
        if self._recorder.on:
            return self._recorded(task, work)
        return self._act(task, work.step, self._values(task, work))

    def _values(self, task: _Task, work: Work) -> list[Value]:
        """A Run's inputs, or a Send's pieces as they are to travel."""
        values = work.values(task.installed.scratch)
        if task.exact or isinstance(work.step, Run):
            return values
        kinds = task.installed.schedule.outgoing[work.step.transfer].dtypes
        if not kinds:
            return values
        found = round_all(kinds, values)
        with self._changed:
            self._counters.rounding.setdefault(task.deployment, RoundingTally()).count(kinds, found)
        return found

    def _recorded(self, task: _Task, work: Work) -> list[Value]:
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
            return installed.prepared.run(step.segment, values)
        transfer = installed.schedule.outgoing[step.transfer]
        node = installed.nodes[transfer.target] if transfer.target != GATEWAY else gateway_of(task.request)
        message = Tensors(task.deployment, task.epoch, task.request, transfer.number, (), exact=task.exact)
        self._send(node, message, values)
        with self._changed:
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


def _stale(about: Tensors | _Ended, error: str) -> Parcel:
    return gateway_of(about.request), Failed(about.deployment, about.epoch, about.request, True, error), ()
