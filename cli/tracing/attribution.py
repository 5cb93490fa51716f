"""Attribution: computes where the time of a request went on each device, and where the plan predicted that it would go.
Rules: no door.

Every instant of the request counts once for each device, for the first activity in `ORDER` that goes on there. Waiting
is therefore only the time in which nothing was being sent or received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgepart.agent.trace.spans import COMPUTE, COMPUTING, COPY, GATEWAY_LANE, RECEIVE, SEND, WAIT, WRITE
from edgepart.client.trace_records import PlanShape, SpanBar, Trace
from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.plans.plan import GATEWAY, Receive, Send
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule
from edgepart.planner.simulation.latency import run_schedule

OTHERS = "others"
"""The device works on other requests."""
IDLE = "idle"
"""The device has done its part of the request."""
REST = "rest"
"""The time between two steps: switching threads, and Python."""
ORDER = (COMPUTE, COPY, SEND, RECEIVE, OTHERS, WAIT, IDLE, REST)

Stretch = tuple[str, float, float]
"""An activity, and the seconds at which it begins and ends."""


@dataclass(frozen=True)
class AttributionRow:
    """The time of one device during one request."""

    device: str
    """A device's name, or GATEWAY for the request's gateway."""
    seconds: Mapping[str, float]
    """The seconds of each activity in `ORDER`. They add up to the request's."""
    predicted: Mapping[str, float] | None
    """The same for the simulated plan, in which receiving counts as waiting; None if it cannot be simulated."""


def shares(start_s: float, stop_s: float, stretches: Iterable[Stretch]) -> dict[str, float]:
    """The seconds of each activity in `ORDER`. They add up to `stop_s - start_s`.

    >>> shares(0.0, 4.0, [("compute", 0.0, 2.0), ("wait", 1.0, 3.0)]) | {}
    {'compute': 2.0, 'copy': 0.0, 'send': 0.0, 'receive': 0.0, 'others': 0.0, 'wait': 1.0, 'idle': 0.0, 'rest': 1.0}
    """
    marks: list[tuple[float, int, str]] = []
    for what, begin, end in stretches:
        begin, end = max(begin, start_s), min(end, stop_s)
        if end > begin:
            marks += [(begin, 1, what), (end, -1, what)]
    found = dict.fromkeys(ORDER, 0.0)
    going: Counter[str] = Counter()
    now = start_s
    for at, change, what in sorted(marks):
        found[_first(going)] += at - now
        going[what] += change
        now = at
    found[REST] += stop_s - now
    return found


def _first(going: Counter[str]) -> str:
    return next((what for what in ORDER if going[what] > 0), REST)


def rows(trace: Trace, request: SpanBar, cluster: Cluster | None) -> list[AttributionRow]:
    """A row for each device that worked on this request, and a last one for its gateway. Without `cluster` nothing is
    predicted."""
    plan = trace.plans.get((request.deployment, request.epoch))
    mine = trace.of_request(request.request)
    worked = stretches_of(trace, request)
    forecast = predict_seconds(plan, cluster, request.device, worked) if plan and cluster else {}
    found = [
        AttributionRow(name, shares(request.start_s, request.stop_s, own), forecast.get(name))
        for name, own in worked.items()
    ]
    own = [bar for bar in mine if bar.device == request.device and _is_gateways(bar, plan)]
    stretches = [(_category(bar), bar.start_s, bar.stop_s) for bar in own]
    stretches.append((WAIT, request.start_s, request.stop_s))
    return [*found, AttributionRow(GATEWAY, shares(request.start_s, request.stop_s, stretches), None)]


def stretches_of(trace: Trace, request: SpanBar) -> dict[str, list[Stretch]]:
    """Maps each device that did a step of the request to its activities during the request."""
    plan = trace.plans.get((request.deployment, request.epoch))
    worked = {bar.device for bar in trace.of_request(request.request) if bar.lane == COMPUTING}
    return {
        part.device: _stretches(trace, request, part.device, plan)
        for part in trace.parts
        if part.device in worked
    }


def _category(bar: SpanBar) -> str:
    return SEND if bar.kind == WRITE else bar.kind


def _is_gateways(bar: SpanBar, plan: PlanShape | None) -> bool:
    """Whether the bar is an activity of the gateway, and not of the device on which the gateway runs."""
    if bar.lane == GATEWAY_LANE:
        return True
    if plan is None or not 0 <= bar.transfer < len(plan.messages) or bar.kind not in (WRITE, RECEIVE):
        return False
    source, target, _ = plan.messages[bar.transfer]
    return (source if bar.kind == WRITE else target) == GATEWAY


def _stretches(trace: Trace, request: SpanBar, device: str, plan: PlanShape | None) -> list[Stretch]:
    """The device's activities during the request. It waits before its first step, and is idle after its last one."""
    found: list[Stretch] = []
    begin, end = request.stop_s, request.start_s
    for bar in trace.bars:
        if bar.device != device or bar.stop_s < request.start_s or bar.start_s > request.stop_s:
            continue
        if bar.request != request.request:
            if bar.lane == COMPUTING and bar.kind != WAIT:
                found.append((OTHERS, bar.start_s, bar.stop_s))
        elif bar.lane == COMPUTING or (bar.kind in (WRITE, RECEIVE) and not _is_gateways(bar, plan)):
            found.append((_category(bar), bar.start_s, bar.stop_s))
            if bar.lane == COMPUTING:
                begin, end = min(begin, bar.start_s), max(end, bar.stop_s)
    return [*found, (WAIT, request.start_s, begin), (IDLE, end, request.stop_s)]


def predict_seconds(
    plan: PlanShape, cluster: Cluster, gateway: str, devices: Iterable[str]
) -> dict[str, dict[str, float]]:
    """The seconds of each activity in `ORDER` for the simulated plan, by device; {} if the cluster lacks a device of the
    plan."""
    known = {device.name for device in cluster.devices}
    if not known.issuperset({*plan.steps, gateway}):
        return {}
    simulation = run_schedule(schedule_of(plan), cluster, gateway)
    chosen = list(devices)
    last_s = max(
        (
            simulation.arrivals_s[number]
            for number, (source, target, _) in enumerate(plan.messages)
            if target == GATEWAY and source in chosen
        ),
        default=simulation.latency_s,
    )
    found = {}
    for device in chosen:
        bars = simulation.timeline.get(device, ())
        end = max((bar.stop_s for bar in bars if bar.kind != SEND), default=0.0)
        stretches = [(bar.kind, bar.start_s, bar.stop_s) for bar in bars]
        found[device] = shares(0.0, last_s, [*stretches, (IDLE, end, last_s)])
    return found


def schedule_of(plan: PlanShape) -> TimedSchedule:
    steps = {device: [_step(kind, value) for kind, value in own] for device, own in plan.steps.items()}
    return TimedSchedule(steps, [MessageTimes(*message) for message in plan.messages], plan.replicas)


def _step(kind: str, value: float) -> Compute | Send | Receive:
    if kind == "run":
        return Compute(value, "")
    return Send(int(value)) if kind == "send" else Receive(int(value))
