"""Compute threads: do the steps of the requests under way. A door: one thread for each deployment, which sleeps until there
is work (lanes.py), and the clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from threading import RLock, Thread

from edgepart.agent.execution.lanes import EXCLUSIVE_STEP_S, BorrowedConnection, Lane
from edgepart.agent.execution.outgoing import SendValues, post
from edgepart.agent.execution.request_queue import RequestQueue
from edgepart.agent.execution.schedule import ReadyStep
from edgepart.agent.execution.step_actions import StepActions
from edgepart.agent.execution.tasks import RequestTask
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import COMPUTING, WAIT
from edgepart.planner.errors import ClusterError, EdgepartError, StateLost, Unavailable, WorkerDied
from edgepart.planner.plans.plan import Run

log = logging.getLogger(__name__)

DataFrom = Callable[[str], BorrowedConnection | None]
"""data_from(node id) is the connection on which transfers come from that node; None if there is none."""

COMPUTE_THREAD = "edgepart-compute"


class ComputeThreads:
    """The threads that do the steps of a queue's requests. Thread-safe; callers of `open` and `close` hold the lock."""

    def __init__(
        self,
        lock: RLock,
        lanes: dict[str, Lane],
        requests: RequestQueue,
        actions: StepActions,
        send: SendValues,
        recorder: Recorder,
        data_from: DataFrom,
    ) -> None:
        """`lanes` are opened and closed here, and the queue looks at them. `data_from` has the connections on which
        transfers come, which the threads may read themselves."""
        self._lock = lock
        self._lanes = lanes
        self._requests = requests
        self._actions = actions
        self._send = send
        self._recorder = recorder
        self._data_from = data_from
        self._threads: list[Thread] = []
        self._started = False
        self._stopping = False

    def start(self) -> None:
        """Begin to compute. Lanes that were opened before get their threads now."""
        with self._lock:
            self._started = True
            for lane in self._lanes.values():
                self._begin(lane)

    def stop(self, wait_s: float) -> None:
        """Wait until the steps under way end, for `wait_s` seconds at most."""
        until = time.monotonic() + wait_s
        with self._lock:
            self._stopping = True
            for lane in self._lanes.values():
                lane.wake()
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    @property
    def alive(self) -> bool:
        """Whether all of them are alive, or were told to stop."""
        with self._lock:
            lanes = list(self._lanes.values())
            return self._stopping or all(lane.thread is not None and lane.thread.is_alive() for lane in lanes)

    # Lanes

    def open(self, name: str) -> None:
        """Have a thread for this deployment."""
        if name not in self._lanes:
            lane = self._lanes[name] = Lane(name, self._lock)
            if self._started:
                self._begin(lane)

    def close(self, name: str) -> None:
        """End the deployment's thread, if it has one. Nothing of that deployment may be under way any more."""
        lane = self._lanes.pop(name, None)
        if lane is not None:
            lane.wake()
            self._give_turn(lane)

    def _begin(self, lane: Lane) -> None:
        started = lane.start(partial(self._work, lane), COMPUTE_THREAD)
        self._threads = [thread for thread in self._threads if thread.is_alive()] + [started]

    def _is_open(self, lane: Lane) -> bool:
        return not self._stopping and self._lanes.get(lane.name) is lane

    def _give_turn(self, lane: Lane) -> None:
        """Wake the other lanes, which may have waited for this one."""
        for other in self._lanes.values():
            if other is not lane:
                other.wake()

    # What the threads do

    def _work(self, lane: Lane) -> None:
        next_step = self._requests.next_step
        while True:
            with self._lock:
                job = None
                # A lane that was closed takes nothing: another lane of the same name may be open by now.
                while self._is_open(lane) and (job := next_step(lane, time.monotonic())) is None:
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
        for one in self._requests.in_order():
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
            current = self._requests.tasks.get(task.request) is task
            out = [self._requests.fail(task, fault, **flags)] if current else []
        post(out, self._send)

    def _do_step(self, lane: Lane, task: RequestTask, work: ReadyStep) -> ReadyStep | None:
        """Do the step. If the next one is a Send that can be done, return it, as others wait for it."""
        actions, requests = self._actions, self._requests
        began_s = time.monotonic()
        outputs = actions.record(task, work) if self._recorder.on else actions.act(task, work)
        with self._lock:
            if type(work.step) is Run:
                actions.count_run(task, work.step.segment, time.monotonic() - began_s)
            if requests.tasks.get(task.request) is task:
                progress = task.progress
                progress.done(outputs)
                if (following := progress.next_send()) is not None:
                    return following
                if progress.finished:
                    requests.finish(task)
            self._step_ended(lane)
        return None

    def _step_ended(self, lane: Lane) -> None:
        lane.task = None
        if len(self._lanes) > 1:
            self._give_turn(lane)
