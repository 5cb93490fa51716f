"""Perfetto: writes a trace in the Trace Event Format, for ui.perfetto.dev and chrome://tracing. Rules: no door.

Each device is a process, each lane a thread, and each message an arrow from its sending to its reception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgepart.agent.trace.spans import COMPUTING, GATEWAY_LANE, GRPC, HTTP, QUEUES, RECEIVE, REQUESTS, SEND
from edgepart.client.trace_records import SpanBar, Trace

ORDER = (COMPUTING, GATEWAY_LANE, REQUESTS, QUEUES, HTTP, GRPC)
TITLES = {
    COMPUTING: "compute",
    GATEWAY_LANE: "gateway",
    REQUESTS: "requests",
    QUEUES: "queue",
    HTTP: "HTTP",
    GRPC: "gRPC",
}

Event = dict[str, Any]


def trace_events(trace: Trace) -> dict[str, Any]:
    """The trace as a document. Times are microseconds since the first bar."""
    origin_s = min((bar.start_s for bar in trace.bars), default=0.0)
    placed = [(bar, lane) for device in _devices(trace) for bar, lane in lanes(_of(trace, device))]
    pids = {device: n for n, device in enumerate(_devices(trace), 1)}
    threads = sorted(
        {(bar.device, lane) for bar, lane in placed}, key=lambda one: (pids[one[0]], _rank(one[1]))
    )
    tids = {thread: n for n, thread in enumerate(threads, 1)}
    named = [_meta("process_name", pids[device], 0, device) for device in pids]
    named += [_meta("thread_name", pids[device], tid, _title(lane)) for (device, lane), tid in tids.items()]
    named += [_sorting_event(pids[device], tid) for (device, _), tid in tids.items()]
    events: list[Event] = []
    places: dict[int, tuple[int, int]] = {}
    for bar, lane in placed:
        places[id(bar)] = pid, tid = pids[bar.device], tids[bar.device, lane]
        events.append(_slice(bar, pid, tid, origin_s))
    events += _arrows(trace.bars, places, origin_s)
    # An arrow is attached to the last bar before it, so bars come first among events of the same time.
    events.sort(key=lambda event: (event["ts"], event["ph"] != "X", event["dur"]))
    return {"traceEvents": named + events, "displayTimeUnit": "ms", "otherData": _about(trace)}


def _devices(trace: Trace) -> list[str]:
    return [part.device for part in trace.parts]


def _of(trace: Trace, device: str) -> list[SpanBar]:
    return [bar for bar in trace.bars if bar.device == device]


def lanes(bars: Sequence[SpanBar]) -> list[tuple[SpanBar, tuple[str, int]]]:
    """Each bar of one device with its lane and a number: bars that would overlap in a lane get further numbers."""
    free: dict[str, list[float]] = {}
    found = []
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.stop_s)):
        ends = free.setdefault(bar.lane, [])
        number = next((n for n, end in enumerate(ends) if end <= bar.start_s), len(ends))
        ends[number : number + 1] = [bar.stop_s]
        found.append((bar, (bar.lane, number)))
    return found


def _rank(lane: tuple[str, int]) -> tuple[int, str, int]:
    name, number = lane
    return ORDER.index(name) if name in ORDER else len(ORDER), name, number


def _title(lane: tuple[str, int]) -> str:
    name, number = lane
    direction, _, peer = name.partition(" ")
    title = TITLES.get(name) or f"{'sending to' if direction == 'to' else 'receiving from'} {peer}"
    return f"{title} {number + 1}" if number else title


def _meta(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "dur": 0, "args": {"name": name}}


def _sorting_event(pid: int, tid: int) -> Event:
    return _meta("thread_sort_index", pid, tid, "") | {"args": {"sort_index": tid}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _slice(bar: SpanBar, pid: int, tid: int, origin_s: float) -> Event:
    start = _us(bar.start_s - origin_s)
    args: dict[str, Any] = {
        "deployment": bar.deployment,
        "epoch": f"{bar.epoch[0]}.{bar.epoch[1]}",
        "request": bar.request,
        "bytes": bar.nbytes or None,
        "transfer": bar.transfer if bar.transfer >= 0 else None,
        "what": bar.what,
        "peer": bar.peer,
        "thread_cpu_us": _us(bar.cpu_s) or None,
    }
    return {
        "ph": "X",
        "name": _name(bar),
        "cat": bar.kind,
        "ts": start,
        "dur": max(0.0, round(_us(bar.stop_s - origin_s) - start, 3)),
        "pid": pid,
        "tid": tid,
        "args": {key: value for key, value in args.items() if value not in ("", None)},
    }


def _name(bar: SpanBar) -> str:
    if bar.transfer >= 0:
        where = {"send": "to ", "write": "to ", "receive": "from ", "wait": "for "}.get(bar.kind, "")
        return f"{bar.kind} {bar.transfer} {where}{bar.peer or 'the gateway'}"
    return bar.what if bar.kind == "compute" and bar.what else bar.kind


def _arrows(bars: Iterable[SpanBar], places: Mapping[int, tuple[int, int]], origin_s: float) -> list[Event]:
    """An arrow from each message's sending to its reception, if the trace has both."""
    sent = {(bar.request, bar.transfer): bar for bar in bars if bar.kind == SEND and bar.transfer >= 0}
    arrows: list[Event] = []
    for number, bar in enumerate(bar for bar in bars if bar.kind == RECEIVE and bar.transfer >= 0):
        source = sent.get((bar.request, bar.transfer))
        if source is None:
            continue
        for phase, end, at_s in (("s", source, source.start_s), ("f", bar, bar.start_s)):
            pid, tid = places[id(end)]
            arrow = {"ph": phase, "name": "message", "cat": "message", "id": number, "pid": pid, "tid": tid}
            arrows.append(
                arrow | {"ts": _us(at_s - origin_s), "dur": 0} | ({"bp": "e"} if phase == "f" else {})
            )
    return arrows


def _about(trace: Trace) -> dict[str, Any]:
    return {
        "model": trace.model,
        "clock": f"monotonic, of {trace.gateway}",
        "clock_error_us": {part.device: _us(part.clock_error_s) for part in trace.parts},
        "forgotten_spans": {part.device: part.forgotten for part in trace.parts},
        "missing": dict(trace.missing),
    }
