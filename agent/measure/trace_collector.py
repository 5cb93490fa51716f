"""Trace collector: lets all members record spans, collects them, and measures the members' clocks. Door: the event loop.

If a member cannot take part, the trace names it with the reason and has the spans of the others. Recording ends by itself
when its time is up, even if the agent that asked for it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgepart.agent.cluster.state.events import Member
from edgepart.agent.measure.clock_exchange import ClockExchange
from edgepart.agent.measure.clock_offset import OWN_OFFSET, ClockMap, Offset
from edgepart.agent.net.rpc_client import RpcClient
from edgepart.agent.trace.recorder import RecordedSpans, Recorder
from edgepart.agent.trace.spans import Span, pack, unpack
from edgepart.agent.wire import versions
from edgepart.agent.wire.control import Prepare
from edgepart.agent.wire.queries import TRACES, Record, Recording, Spans, WantSpans
from edgepart.planner.errors import FrameError, RequestError, Unavailable
from edgepart.planner.plans.plan import GATEWAY, Plan, Receive, Run
from edgepart.planner.plans.plan_bytes import plan_from_bytes

log = logging.getLogger(__name__)

LONGEST_TRACE_S = 600.0
"""The longest trace in seconds; meanwhile members keep their spans in memory."""
GRACE_S = 30.0
"""Seconds after the trace's time for which a member keeps its spans."""
UNEXPECTED_ANSWER = "it answers something else than it was asked"
ENLIST_S, COLLECT_S = 5.0, 30.0
"""Seconds that a member may take to begin recording, and to hand over its spans."""


def with_trace_support(version: str) -> str:
    """The version by which this agent tells others that it can record traces.

    >>> with_trace_support("1.2"), with_trace_support("1.2+local")
    ('1.2+traces', '1.2+local.traces')
    """
    return f"{version}{'.' if '+' in version else '+'}{TRACES}"


def supports_traces(version: str) -> bool:
    """Whether an agent with this version can record traces.

    >>> supports_traces("1.2+local.traces"), supports_traces("1.2")
    (True, False)
    """
    return versions.understands(version, TRACES)


@dataclass
class _Trace:
    """A trace that this agent takes."""

    deployment: str
    began_s: float
    plans: dict[tuple[str, Any], dict[str, Any]] = field(default_factory=dict)
    """The plans that were seen to serve meanwhile, as documents, by deployment and epoch."""
    firsts: dict[str, Offset] = field(default_factory=dict)
    """The clock offset of each other member when it began to record, by node id."""
    names: dict[str, str] = field(default_factory=dict)
    """The members' names, by node id."""
    missing: dict[str, str] = field(default_factory=dict)
    """Maps the name of each member whose part is missing to the reason."""


class TraceCollector:
    """Takes traces, one at a time, and records for traces of other members. For the event loop's thread."""

    def __init__(
        self,
        node: str,
        recorder: Recorder,
        asks: RpcClient,
        clocks: ClockExchange,
        members: Callable[[], Sequence[Member]],
        orders: Callable[[str], Sequence[Prepare]],
    ) -> None:
        """`orders(deployment)` returns the Prepare messages of the plans by which a deployment and its variants serve
        now."""
        self._node = node
        self._recorder = recorder
        self._asks = asks
        self._clocks = clocks
        self._members = members
        self._orders = orders
        self._loop = asyncio.get_running_loop()
        self._owner = ""
        """The id of the node for which this device records; "" if it does not record."""
        self._lapse: asyncio.TimerHandle | None = None
        self._trace: _Trace | None = None

    # Taking one

    async def start(self, deployment: str, seconds: float) -> dict[str, Any]:
        """Let the members record from now on. Raises RequestError if `seconds` is more than LONGEST_TRACE_S, and
        Unavailable if this device is already recording."""
        if not 0 < seconds <= LONGEST_TRACE_S:
            raise RequestError(f"a trace takes up to {LONGEST_TRACE_S:.0f} seconds, not {seconds}")
        if error := self._begin(self._node, seconds):
            raise Unavailable(error)
        try:
            trace = _Trace(deployment, self._loop.time())
            await self._see_plans(trace)
            members = self._members()
            trace.names = {member.node: member.name for member in members}
            others = [member for member in members if member.node != self._node]
            await asyncio.gather(*(self._enlist(trace, member, seconds) for member in others))
        except BaseException:
            self._end()
            raise
        self._trace = trace
        taking_part = [trace.names[self._node], *(trace.names[node] for node in trace.firsts)]
        return {"model": deployment, "devices": taking_part, "missing": trace.missing}

    async def _enlist(self, trace: _Trace, member: Member, seconds: float) -> None:
        if not supports_traces(member.version):
            trace.missing[member.name] = f"its edgepart ({member.version or 'unknown'}) cannot record"
            return
        try:
            offset = await self._clocks.offset(member.node)
            answer, _ = await self._asks.ask(member.node, Record(0, seconds), timeout_s=ENLIST_S)
            if error := answer.error if isinstance(answer, Recording) else UNEXPECTED_ANSWER:
                raise Unavailable(error)
        except Unavailable as error:
            trace.missing[member.name] = str(error)
        else:
            trace.firsts[member.node] = offset

    async def finish(self, deployment: str) -> dict[str, Any]:
        """The trace of the deployment as a document. Raises RequestError if no such trace is being taken (any more)."""
        trace = self._trace
        if trace is None or trace.deployment != deployment:
            raise RequestError(f"no trace of {deployment!r} is being taken through this agent (any more)")
        self._trace = None
        ended_s = self._loop.time()
        mine = self._end()
        parts = [self._part(trace, self._node, ClockMap(OWN_OFFSET, OWN_OFFSET), mine)]
        found = await asyncio.gather(*(self._collect(trace, node) for node in trace.firsts))
        await self._see_plans(trace)
        return {
            "model": deployment,
            "gateway": trace.names[self._node],
            "began_s": trace.began_s,
            "ended_s": ended_s,
            "devices": parts + [part for part in found if part is not None],
            "missing": trace.missing,
            "plans": list(trace.plans.values()),
        }

    async def _collect(self, trace: _Trace, node: str) -> dict[str, Any] | None:
        """A member's part of the trace; None if it is missing."""
        first = trace.firsts[node]
        try:
            answer, payload = await self._asks.ask(node, WantSpans(0), timeout_s=COLLECT_S)
            if error := answer.error if isinstance(answer, Spans) else UNEXPECTED_ANSWER:
                raise Unavailable(error)
            recorded = RecordedSpans(await asyncio.to_thread(unpack, payload), answer.forgotten)
        except (Unavailable, FrameError) as error:
            trace.missing[trace.names[node]] = str(error)
            return None
        try:
            last = await self._clocks.offset(node)
        except Unavailable as error:
            log.info("the clock of %s is assumed to run as fast as ours: %s", node, error)
            last = first
        return self._part(trace, node, ClockMap(first, last), recorded)

    def _part(self, trace: _Trace, node: str, clock: ClockMap, recorded: RecordedSpans) -> dict[str, Any]:
        return {
            "name": trace.names[node],
            "node": node,
            "clock_error_s": clock.error_s,
            "clock_ahead_s": clock.first.ahead_s,
            "forgotten": recorded.forgotten,
            "spans": [_row(span, clock) for span in recorded.spans],
        }

    async def _see_plans(self, trace: _Trace) -> None:
        for order in self._orders(trace.deployment):
            if (order.deployment, order.epoch) not in trace.plans:
                plan = await asyncio.to_thread(plan_from_bytes, order.plan)
                trace.plans[order.deployment, order.epoch] = _plan_document(order, plan)

    # Recording

    async def answer(self, node: str, question: Record | WantSpans) -> tuple[Recording | Spans, list[bytes]]:
        """Begin to record for another member, or hand over the recorded spans. Returns the answer and its payload."""
        if isinstance(question, Record):
            fits = 0 < question.seconds <= LONGEST_TRACE_S
            error = self._begin(node, question.seconds) if fits else f"not for {question.seconds} s"
            return Recording(question.ticket, error), []
        if self._owner != node:
            return Spans(question.ticket, 0, "nothing was recorded for you, or its time was up"), []
        recorded = self._end()
        return Spans(question.ticket, recorded.forgotten), [await asyncio.to_thread(pack, recorded.spans)]

    def _begin(self, node: str, seconds: float) -> str:
        """Begin to record for `node`. Returns why this is not possible, or ""."""
        if self._owner and self._owner != node:
            return f"a trace is being taken already, by node {self._owner}"
        if self._owner == node == self._node:
            return "a trace is being taken through this agent already"
        self._end()
        self._owner = node
        self._lapse = self._loop.call_later(seconds + GRACE_S, self._end)
        self._recorder.start()
        return ""

    def _end(self) -> RecordedSpans:
        """Stop recording, and return the recorded spans."""
        if self._lapse is not None:
            self._lapse.cancel()
        self._owner, self._lapse, self._trace = "", None, None
        return self._recorder.stop()


def _row(span: Span, clock: ClockMap) -> list[Any]:
    """The span as a row of the document: by our clock, in the order of `Span`'s fields, with its subject's fields."""
    about = span.about
    began_s = clock.ours(span.began_s)
    took_s = max(0.0, clock.ours(span.began_s + span.took_s) - began_s)
    where = (about.deployment, about.epoch.term, about.epoch.number, about.request)
    what = (span.what, span.peer, span.transfer, span.nbytes, span.cpu_s)
    return [span.lane, span.kind, began_s, took_s, *where, *what]


def _plan_document(order: Prepare, plan: Plan) -> dict[str, Any]:
    """The plan as the document has it, to compare the trace with: each device's steps and their predicted times."""
    steps: dict[str, list[list[Any]]] = {}
    for device, program in plan.programs.items():
        steps[device] = []
        for step in program.steps:
            if isinstance(step, Run):
                steps[device].append(["run", program.segments[step.segment].compute_s])
            else:
                kind = "receive" if isinstance(step, Receive) else "send"
                steps[device].append([kind, step.transfer])
    return {
        "deployment": order.deployment,
        "epoch": [order.epoch.term, order.epoch.number],
        "strategy": plan.strategy,
        "predicted_latency_s": plan.predicted_latency_s,
        "replicas": [list(replica.devices) for replica in plan.replicas],
        "nodes": {device: node for device, node in order.names if device != GATEWAY},
        "steps": steps,
        "messages": [[t.source, t.target, t.nbytes] for t in plan.transfers],
    }
