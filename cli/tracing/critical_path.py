"""Critical path of a traced request: the steps that followed each other from its arrival to its answer. Rules: no door.

The path is found as planner/plans/timeline.py finds it in a simulation: backwards from the last output, and from each wait
to the device that sent the awaited message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgepart.agent.trace.spans import COMPUTING, RECEIVE, SEND, WAIT
from edgepart.client.trace_records import PlanShape, SpanBar, Trace
from edgepart.planner.plans.plan import GATEWAY

MESSAGE = "message"
BETWEEN = "between"
"""The time between two steps of the request: other requests, and switching threads."""


@dataclass(frozen=True, slots=True)
class TracedLeg:
    """One part of the critical path."""

    kind: str
    """A span's kind, MESSAGE or BETWEEN."""
    source: str
    """The device; for a message, its sender."""
    target: str
    """The device; for a message, its receiver."""
    seconds: float
    """The time that the part took; for a message, from its sending until the receiver goes on."""


def critical_path(trace: Trace, request: SpanBar) -> list[TracedLeg]:
    """The parts from first to last. Their seconds add up to the request's, unless parts of the trace are missing. The list
    is empty if the plan is unknown, or if the trace does not show how the answer came."""
    plan = trace.plans.get((request.deployment, request.epoch))
    return _Walk(plan, trace.of_request(request.request), request).legs() if plan else []


class _Walk:
    def __init__(self, plan: PlanShape, bars: Sequence[SpanBar], request: SpanBar) -> None:
        self._messages = plan.messages
        self._request = request
        self._sent = {bar.transfer: bar for bar in bars if bar.kind == SEND}
        self._arrived = {number: bar.stop_s for number, bar in self._sent.items()}
        self._arrived |= {bar.transfer: bar.stop_s for bar in bars if bar.kind == RECEIVE}
        self._came = {number: bar.start_s for number, bar in self._sent.items()}
        self._came |= {bar.transfer: bar.start_s for bar in bars if bar.kind == RECEIVE}
        self._done: dict[str, list[SpanBar]] = defaultdict(list)
        for bar in bars:
            if bar.lane == COMPUTING:
                self._done[bar.device].append(bar)
        self._legs: list[TracedLeg] = []

    def legs(self) -> list[TracedLeg]:
        ends = [
            n for n, (_, target, _) in enumerate(self._messages) if target == GATEWAY and n in self._arrived
        ]
        if not ends:
            return []
        last = max(ends, key=lambda n: self._arrived[n])
        # Clocks differ a little, and a thread that was woken may note its time before the thread that woke it.
        at = min(self._request.stop_s, self._arrived[last])
        self._add(BETWEEN, GATEWAY, GATEWAY, self._request.stop_s - at)
        number: int | None = last
        seen: set[int] = set()
        while number is not None and number in self._sent and number not in seen:
            seen.add(number)
            source, target, _ = self._messages[number]
            left = min(at, self._sent[number].start_s)
            self._add(MESSAGE, source, target, at - left)
            if source == GATEWAY:
                self._add(BETWEEN, GATEWAY, GATEWAY, left - self._request.start_s)
                break
            number, at = self._back(source, left)
            if number is None:  # The device was told to start, and received no data.
                self._add(BETWEEN, GATEWAY, GATEWAY, at - self._request.start_s)
        return self._legs[::-1]

    def _add(self, kind: str, source: str, target: str, seconds: float) -> None:
        if seconds > 0:
            self._legs.append(TracedLeg(kind, source, target, seconds))

    def _back(self, device: str, at: float) -> tuple[int | None, float]:
        """Walks back on the device to the message that it waited for, and returns the message and its arrival."""
        for bar in reversed([bar for bar in self._done[device] if bar.start_s < at]):
            self._add(BETWEEN, device, device, at - bar.stop_s)
            if bar.kind == WAIT:
                return bar.transfer, min(at, bar.stop_s)
            self._add(bar.kind, device, device, min(at, bar.stop_s) - bar.start_s)
            at = bar.start_s
        came = [
            number
            for number, when in self._came.items()
            if 0 <= number < len(self._messages) and self._messages[number][1] == device and when <= at
        ]
        if not came:
            return None, at
        number = max(came, key=lambda n: self._arrived[n])
        there = min(at, self._arrived[number])
        self._add(BETWEEN, device, device, at - there)
        return number, there


def totals(legs: Sequence[TracedLeg]) -> dict[tuple[str, str, str], tuple[float, int]]:
    """The total seconds and the number of parts by kind, source and target; the longest first."""
    found: dict[tuple[str, str, str], tuple[float, int]] = {}
    for leg in legs:
        seconds, count = found.get((leg.kind, leg.source, leg.target), (0.0, 0))
        found[leg.kind, leg.source, leg.target] = seconds + leg.seconds, count + 1
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def waits(trace: Trace, request: SpanBar) -> Mapping[tuple[str, str], tuple[float, int, float]]:
    """Maps each device and the device that it waits for (GATEWAY: the request itself) to the total seconds of these waits,
    their number, and the seconds of the longest; the largest total first."""
    found: dict[tuple[str, str], tuple[float, int, float]] = {}
    for bar in trace.of_request(request.request):
        if bar.kind == WAIT:
            seconds, count, longest = found.get((bar.device, bar.peer), (0.0, 0, 0.0))
            found[bar.device, bar.peer] = seconds + bar.took_s, count + 1, max(longest, bar.took_s)
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))
