"""The timeline of the last request of a trace, drawn as the predicted one is. Rules: no door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgepart.agent.trace.spans import COMPUTE, COMPUTING, COPY, RECEIVE, REQUEST, SEND, WAIT
from edgepart.planner.plans.plan import GATEWAY
from edgepart.planner.plans.timeline import TimelineBar

BAR_KINDS = {COMPUTE: "compute", COPY: "compute", SEND: "send", WAIT: "wait"}
"""The kinds of spans that are drawn, and how."""


@dataclass(frozen=True, slots=True)
class _TracedSpan:
    """A row of a trace's document (agent/measure/trace_collector.py), with the name of its device."""

    device: str
    lane: str
    kind: str
    began_s: float
    took_s: float
    deployment: str
    request: str
    what: str
    transfer: int
    nbytes: int


def draw_last_request(trace: Mapping[str, Any]) -> dict[str, Any] | None:
    """{"seconds", "devices", "timeline"} of the last request in a trace, `timeline` as SVG; None if there is none."""
    from edgepart.planner.report.drawing import colour_devices, draw_timeline  # late: imports the simulator

    spans = [_span(part["name"], row) for part in trace["devices"] for row in part["spans"]]
    traced = {trace["model"], *(plan["deployment"] for plan in trace["plans"])}
    requests = [one for one in spans if one.kind == REQUEST and one.deployment in traced]
    if not requests:
        return None
    last = max(requests, key=lambda one: one.began_s)
    mine = [one for one in spans if one.request == last.request]
    plan = next((one for one in trace["plans"] if one["deployment"] == last.deployment), None)
    devices = [part["name"] for part in trace["devices"] if any(one.device == part["name"] for one in mine)]
    bars = {name: _bars([one for one in mine if one.device == name], last.began_s) for name in devices}
    names = {node: part["name"] for part in trace["devices"] for node in [part["node"]]}
    messages = _messages(mine, plan, names, last.began_s) if plan else []
    svg = draw_timeline(bars, messages, last.took_s, trace["gateway"])
    return {"seconds": last.took_s, "devices": colour_devices(bars), "timeline": svg}


def _span(device: str, row: Sequence[Any]) -> _TracedSpan:
    lane, kind, began_s, took_s, deployment, _, _, request, what, _, transfer, nbytes, _ = row
    return _TracedSpan(device, lane, kind, began_s, took_s, deployment, request, what, transfer, nbytes)


def _bars(spans: Sequence[_TracedSpan], origin_s: float) -> list[TimelineBar]:
    found = []
    for one in spans:
        if one.lane == COMPUTING and one.kind in BAR_KINDS:
            start_s = one.began_s - origin_s
            found.append(
                TimelineBar(start_s, start_s + one.took_s, one.what or one.kind, BAR_KINDS[one.kind])
            )
    return found


def _messages(
    spans: Sequence[_TracedSpan], plan: Mapping[str, Any], names: Mapping[str, str], origin_s: float
) -> list[Any]:
    """The messages between devices: from the begin of their sending to the end of their receipt."""
    from edgepart.planner.report.drawing import DrawnMessage

    called = {device: names.get(node, device) for device, node in plan["nodes"].items()}
    sent = {one.transfer: one.began_s - origin_s for one in spans if one.kind == SEND}
    come = {one.transfer: one.began_s + one.took_s - origin_s for one in spans if one.kind == RECEIVE}
    there = {one.device for one in spans}
    return [
        DrawnMessage(called[source], called[target], sent[number], max(come[number], sent[number]), nbytes)
        for number, (source, target, nbytes) in enumerate(plan["messages"])
        if GATEWAY not in (source, target) and number in sent and number in come
        if {called[source], called[target]} <= there
    ]
