"""Step actions: what a compute thread does in one step of a request. It runs a segment or sends a transfer, and counts and
records that. A door: programs run, messages go out, and the recorder has a clock.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from threading import RLock

from edgepart.agent.execution.carried_states import PlanId
from edgepart.agent.execution.counters import Counters, SegmentTime
from edgepart.agent.execution.outgoing import SendValues
from edgepart.agent.execution.prepared import describe_segment
from edgepart.agent.execution.schedule import ReadyStep
from edgepart.agent.execution.tasks import RequestTask
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import COMPUTE, COMPUTING, COPY, SEND
from edgepart.agent.wire.inference import Tensors
from edgepart.agent.wire.likely_entries import keep_likely
from edgepart.agent.wire.reduced_precision import RoundingTally, round_all
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.plans.plan import GATEWAY, Run, Send


class StepActions:
    """The actions of all compute threads of this device. The caller must not hold the lock, except for `count_run`."""

    def __init__(
        self,
        lock: RLock,
        send: SendValues,
        recorder: Recorder,
        counters: Counters,
        under_way: Container[str],
        installed: Container[PlanId],
    ) -> None:
        """`under_way` has the names of the requests under way, and `installed` the plans of which a program is installed;
        others are not counted."""
        self._lock = lock
        self._send = send
        self._recorder = recorder
        self._counters = counters
        self._under_way = under_way
        self._installed = installed

    def act(self, task: RequestTask, work: ReadyStep) -> Sequence[Value]:
        """Run the step's segment, or send its transfer; returns a Run's outputs."""
        values = work.values(task.installed.scratch)
        if type(work.step) is Run:
            return self._run(task, work, values)
        self._send_pieces(task, work, values)
        return ()

    def record(self, task: RequestTask, work: ReadyStep) -> Sequence[Value]:
        """Do the step as `act` does, and record how long its parts took."""
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

    def count_run(self, task: RequestTask, segment: int, took_s: float) -> None:
        """Count the time of the whole step, because that is what the planner predicts: putting the inputs together,
        running the segment and keeping its outputs. The caller holds the lock."""
        deployment = task.deployment
        if (deployment, task.epoch) not in self._installed:
            return
        timed_as = task.installed.prepared.program.segments[segment].timed_as
        times = self._counters.segments.get((deployment, timed_as))
        if times is None:
            times = self._counters.segments[deployment, timed_as] = SegmentTime()
        times.runs += 1
        times.total_s += took_s
        times.least_s = min(times.least_s, took_s)
        times.recent_s.append(took_s)

    def _run(self, task: RequestTask, work: ReadyStep, values: Sequence[Value]) -> Sequence[Value]:
        assert isinstance(work.step, Run)
        return task.installed.prepared.run(
            work.step.segment, values, lambda: task.request in self._under_way, work.overwrites
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
