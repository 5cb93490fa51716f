"""Trace summary: sums up a trace, as a document and for people. Rules over rich's tables; no door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgepart.agent.trace.spans import BODY, COMPUTE, DECODE, ENCODE, QUEUE, WAIT
from edgepart.cli.output import console, say, table
from edgepart.cli.tracing.attribution import ORDER, OTHERS, AttributionRow, rows, shares, stretches_of
from edgepart.cli.tracing.critical_path import BETWEEN, MESSAGE, critical_path, totals, waits
from edgepart.cli.verification import off, percent
from edgepart.client.trace_records import SpanBar, Trace, typical
from edgepart.planner.devices.cluster_json import cluster_from_json
from edgepart.planner.figures import format_seconds
from edgepart.planner.plans.plan import GATEWAY

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 5
"""The most parts of the critical path, and the most waits, that are printed."""
SEEN = 0.97
"""A critical path counts as complete if it covers this share of its request."""
PREDICTED = {COMPUTE: "predicted to compute", WAIT: "predicted to wait"}
"""The rows of what was predicted, each below the activity that it predicts."""
WIDE = 100
MARKS = {"compute": "#", "copy": "c", "send": ">", "receive": "<", "others": "o", "wait": ".", "rest": "-"}
"""The characters of the drawing; idle is blank."""


def summary(trace: Trace, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The summary as a document. `cluster` is the document of `edgepart devices --json`."""
    request = typical(trace.requests())
    return {
        "model": trace.model,
        "gateway": trace.gateway,
        "seconds": trace.seconds,
        "devices": [
            {"name": part.device, "clock_error_s": part.clock_error_s, "forgotten": part.forgotten}
            for part in trace.parts
        ],
        "missing": dict(trace.missing),
        "request": None if request is None else _request(trace, request, cluster),
    }


def _request(trace: Trace, request: SpanBar, cluster: Mapping[str, Any]) -> dict[str, Any]:
    plan = trace.plans.get((request.deployment, request.epoch))
    known = cluster_from_json(cluster) if cluster.get("devices") else None
    own = trace.of_request(request.request)
    return {
        "name": request.request,
        "deployment": request.deployment,
        "epoch": list(request.epoch),
        "seconds": request.took_s,
        "predicted_latency_s": plan.predicted_latency_s if plan else None,
        "devices": [_row(row) for row in rows(trace, request, known)],
        "gateway_s": {
            kind: sum(bar.took_s for bar in own if bar.kind == kind) for kind in (BODY, DECODE, QUEUE, ENCODE)
        },
        "critical_path": [
            {"kind": kind, "source": source, "target": target, "seconds": took_s, "parts": count}
            for (kind, source, target), (took_s, count) in totals(critical_path(trace, request)).items()
        ],
        "waits": [
            {"device": device, "for": peer, "seconds": took_s, "times": times, "longest_s": longest_s}
            for (device, peer), (took_s, times, longest_s) in waits(trace, request).items()
        ],
    }


def _row(row: AttributionRow) -> dict[str, Any]:
    predicted = dict(row.predicted) if row.predicted is not None else None
    return {"device": row.device or None, "seconds": dict(row.seconds), "predicted_s": predicted}


def show(document: Mapping[str, Any]) -> None:
    """Prints the summary for people."""
    request = document["request"]
    if request is None:
        say(f"No request of {document['model']} was answered while it was recorded.")
    else:
        _show_request(request, "" if request["deployment"] == document["model"] else ", of other shapes,")
    for device in document["devices"]:
        if device["forgotten"]:
            text = f"{device['name']}: the first {device['forgotten']} spans are missing: there was no room for them"
            say(text, prose=True)
    for name, why in document["missing"].items():
        say(f"{name} is missing: {why}", prose=True)
    worst_s = max((device["clock_error_s"] for device in document["devices"]), default=0.0)
    say(f"clocks agree within {format_seconds(worst_s)}")


def _show_request(request: Mapping[str, Any], which: str) -> None:
    predicted_s = request["predicted_latency_s"]
    against = f", predicted {format_seconds(predicted_s)} ({percent(off(predicted_s, request['seconds']))})"
    say(
        f"The median request{which} took {format_seconds(request['seconds'])}{against if predicted_s else ''}:\n"
    )
    console().print(_table(request))
    say("")
    for sentence in sentences(request):
        say(sentence, prose=True)


def _table(request: Mapping[str, Any]) -> Table:
    """A row for each activity and a column for each device, since a request has more activities than a cluster of small
    boxes has devices."""
    devices = request["devices"]
    total_s = request["seconds"]
    lines = []
    for kind in ORDER:
        if kind != OTHERS or any(device["seconds"][kind] for device in devices):
            lines.append((kind, *(_cell(device["seconds"][kind], total_s) for device in devices)))
        if kind in PREDICTED:
            lines.append(
                (f"  {PREDICTED[kind]}", *(_predicted_cell(d["predicted_s"], kind) for d in devices))
            )
    columns = ("", *(device["device"] or "(gateway)" for device in devices))
    return table(columns, lines, right=columns[1:])


def _cell(part_s: float, total_s: float) -> str:
    """
    >>> _cell(0.0123, 0.03), _cell(0.0, 0.03)
    ('12.3 ms 41%', '-')
    """
    return f"{format_seconds(part_s)} {part_s / total_s:.0%}" if part_s > 0 and total_s > 0 else "-"


def _predicted_cell(predicted: Mapping[str, float] | None, kind: str) -> str:
    return "-" if predicted is None else _cell(predicted[kind], sum(predicted.values()))


def sentences(request: Mapping[str, Any]) -> list[str]:
    """The critical path, the waits and the gateway's times, in words."""
    found = []
    if path := request["critical_path"]:
        legs = "; ".join(_leg(leg) for leg in path[:SHOWN])
        rest_s = sum(leg["seconds"] for leg in path[SHOWN:])
        more = f"; all else {format_seconds(rest_s)}" if rest_s else ""
        seen_s = sum(leg["seconds"] for leg in path)
        what = (
            "Critical path"
            if seen_s > SEEN * request["seconds"]
            else "Critical path, as far back as it is seen"
        )
        found.append(f"{what}, {format_seconds(seen_s)}: {legs}{more}.")
    if request["waits"]:
        found.append("Waits: " + "; ".join(_wait(one) for one in request["waits"][:SHOWN]) + ".")
    beside = request["gateway_s"]
    found.append(
        f"At the gateway, besides: reading the body {format_seconds(beside[BODY])}, "
        f"decoding it {format_seconds(beside[DECODE])}, "
        f"queueing {format_seconds(beside[QUEUE])}, encoding the answer {format_seconds(beside[ENCODE])}."
    )
    return found


def _leg(leg: Mapping[str, Any]) -> str:
    source, target, took = _name_of(leg["source"]), _name_of(leg["target"]), format_seconds(leg["seconds"])
    if leg["kind"] == MESSAGE:
        count = leg["parts"]
        return f"{count} message{'s' if count > 1 else ''} from {source} to {target} {took}"
    if leg["kind"] == BETWEEN:
        return f"{source} between steps {took}"
    verb = {"compute": "computes", "copy": "copies", "send": "sends"}.get(leg["kind"], leg["kind"])
    return f"{source} {verb} {took}"


def _wait(one: Mapping[str, Any]) -> str:
    times = (
        f"in {one['times']} places, {format_seconds(one['longest_s'])} at most"
        if one["times"] > 1
        else "once"
    )
    return f"{one['device']} for {_name_of(one['for'])} {format_seconds(one['seconds'])} ({times})"


def _name_of(device: str) -> str:
    return device if device != GATEWAY else "the gateway"


def draw(trace: Trace) -> str:
    """The median request as text: a line for each device, in which each character shows the activity that took most of its
    time."""
    request = typical(trace.requests())
    if request is None or request.took_s <= 0:
        return ""
    lines = [f"{format_seconds(0.0):>12} {' ' * (WIDE - 12)}{format_seconds(request.took_s):>12}"]
    for device, stretches in stretches_of(trace, request).items():
        places = [_mark(request, stretches, n) for n in range(WIDE)]
        lines.append(f"{device[:12]:>12} {''.join(places)}")
    legend = "  ".join(f"{mark} {kind}" for kind, mark in MARKS.items())
    return "\n".join([*lines, f"{'':12} {legend}"])


def _mark(request: SpanBar, stretches: Sequence[tuple[str, float, float]], place: int) -> str:
    step_s = request.took_s / WIDE
    start_s = request.start_s + place * step_s
    found = shares(start_s, start_s + step_s, stretches)
    return MARKS.get(max(found, key=lambda what: found[what]), " ")
