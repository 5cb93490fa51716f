"""What is read off a trace. A simulated request, written down as agents would, has to give the simulator's own answers."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.trace.spans import (
    COMPUTE,
    COMPUTING,
    RECEIVE,
    REQUEST,
    REQUESTS,
    SEND,
    WAIT,
    WRITE,
    receiving_lane,
    sending_lane,
)
from edgepart.cli.tracing import trace_summary as summarising
from edgepart.cli.tracing.attribution import IDLE, ORDER, OTHERS, REST, rows, shares
from edgepart.cli.tracing.critical_path import critical_path, totals
from edgepart.client.perfetto import lanes, trace_events
from edgepart.client.trace_records import SpanBar, Trace, join_waits, read, typical
from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.devices.cluster_json import cluster_to_json
from edgepart.planner.errors import ClusterError
from edgepart.planner.plans.plan import GATEWAY, Receive, Send
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule, step_times
from edgepart.planner.plans.timeline import critical_path as simulated_path
from edgepart.planner.simulation.latency import Simulation, run_schedule
from tests.planner.simulation.random_schedules import a_cluster, a_schedule

SEEDS = st.integers(0, 10**6)
COUNTS = st.integers(2, 4)
REQUEST_NAME = "g/boot/1"
ORIGIN_S = 1000.0
"""What the gateway's clock shows when the trace begins."""


def row(lane: str, kind: str, start: float, stop: float, *, peer: str = "", transfer: int = -1) -> list[Any]:
    about = ("photos", 1, 1, REQUEST_NAME)
    return [lane, kind, ORIGIN_S + start, stop - start, *about, "", peer, transfer, 10, 0.0]


def node(device: str) -> str:
    return f"n-{device}" if device != GATEWAY else ""


def steps_of(schedule: TimedSchedule, device: str) -> list[list[Any]]:
    found: list[list[Any]] = []
    for step in schedule.steps[device]:
        if isinstance(step, Compute):
            found.append(["run", step.seconds])
        else:
            found.append(["receive" if isinstance(step, Receive) else "send", step.transfer])
    return found


def as_traced(found: Simulation) -> dict[str, Any]:
    """The document of a request that went just as simulated, entered at d0."""
    schedule = found.schedule
    spans: dict[str, list[list[Any]]] = defaultdict(list)
    for device, steps in schedule.steps.items():
        for step, start, stop in step_times(steps, found.arrivals_s):
            if isinstance(step, Compute):
                spans[device].append(row(COMPUTING, COMPUTE, start, stop))
            elif isinstance(step, Receive):
                source = schedule.messages[step.transfer].source
                if stop > start:
                    spans[device].append(
                        row(COMPUTING, WAIT, start, stop, peer=node(source), transfer=step.transfer)
                    )
            else:
                target = schedule.messages[step.transfer].target
                spans[device].append(
                    row(COMPUTING, SEND, start, stop, peer=node(target), transfer=step.transfer)
                )
    for number, message in enumerate(schedule.messages):
        source, target = message.source or "d0", message.target or "d0"
        if message.source == GATEWAY:
            spans["d0"].append(row("gateway", SEND, 0.0, 0.0, peer=node(target), transfer=number))
        left, sent, came = found.departures_s[number], found.sent_s[number], found.arrivals_s[number]
        spans[source].append(row(sending_lane(node(target)), WRITE, left, sent, transfer=number))
        spans[target].append(row(receiving_lane(node(source)), RECEIVE, came, came, transfer=number))
    spans["d0"].append(row(REQUESTS, REQUEST, 0.0, found.latency_s))
    return document(schedule, spans, found.latency_s)


def document(schedule: TimedSchedule, spans: dict[str, list[list[Any]]], seconds: float) -> dict[str, Any]:
    return {
        "model": "photos",
        "gateway": "d0",
        "began_s": ORIGIN_S,
        "ended_s": ORIGIN_S + seconds,
        "devices": [
            {"name": device, "node": node(device), "clock_error_s": 0.0, "forgotten": 0, "spans": own}
            for device, own in spans.items()
        ],
        "missing": {},
        "plans": [
            {
                "deployment": "photos",
                "epoch": [1, 1],
                "predicted_latency_s": seconds,
                "replicas": [],
                "nodes": {device: node(device) for device in schedule.steps},
                "steps": {device: steps_of(schedule, device) for device in schedule.steps},
                "messages": [[m.source, m.target, m.nbytes] for m in schedule.messages],
            }
        ],
    }


def simulated(seed: int, count: int) -> tuple[Simulation, Cluster]:
    chance = Random(seed)
    cluster, schedule = a_cluster(chance, count), a_schedule(chance, count)
    return run_schedule(schedule, cluster, "d0"), cluster


def the_request(trace: Trace) -> SpanBar:
    found = typical(trace.requests())
    assert found is not None
    return found


# Against the simulator


@given(SEEDS, COUNTS)
@settings(max_examples=100)
def test_a_request_that_goes_as_simulated_took_what_was_predicted(seed: int, count: int) -> None:
    found, cluster = simulated(seed, count)
    trace = read(as_traced(found))
    for one in rows(trace, the_request(trace), cluster):
        assert sum(one.seconds.values()) == pytest.approx(found.latency_s)
        if one.device != GATEWAY:
            assert one.predicted is not None
            assert one.seconds == pytest.approx(one.predicted, abs=1e-9)
            assert one.seconds[COMPUTE] <= found.compute_s[one.device] + 1e-9


@given(SEEDS, COUNTS)
@settings(max_examples=100)
def test_the_critical_path_is_the_simulators(seed: int, count: int) -> None:
    found, _ = simulated(seed, count)
    trace = read(as_traced(found))
    mine = critical_path(trace, the_request(trace))
    theirs = simulated_path(found.schedule, found.arrivals_s)
    assert sum(leg.seconds for leg in mine) == pytest.approx(found.latency_s)

    def computing(legs: Any) -> dict[str, float]:
        seconds: dict[str, float] = defaultdict(float)
        for leg in legs:
            if leg.kind == "compute" and leg.seconds:
                seconds[leg.source] += leg.seconds
        return seconds

    assert computing(mine) == pytest.approx(computing(theirs))
    assert sum(seconds for seconds, _ in totals(mine).values()) == pytest.approx(found.latency_s)


@given(SEEDS, COUNTS, st.integers(0, 10**6))
@settings(max_examples=60)
def test_of_a_trace_with_holes_whatever_is_there_is_told(seed: int, count: int, holes: int) -> None:
    """A device that died, spans that were forgotten, a plan that nobody saw."""
    found, cluster = simulated(seed, count)
    chance = Random(holes)
    full = as_traced(found)
    for part in full["devices"]:
        part["spans"] = [one for one in part["spans"] if one[1] == REQUEST or chance.random() < 0.7]
        part["forgotten"] = chance.choice([0, 0, 5])
    if chance.random() < 0.5:
        gone = full["devices"].pop()
        full["missing"][gone["name"]] = "the link went down"
    if chance.random() < 0.3:
        full["plans"] = []
    trace = read(full)
    # Drawn ways lead over links that a document would have to name.
    told = summarising.summary(trace, cluster_to_json(replace(cluster, routes={})))
    json.dumps(told, allow_nan=False)
    if told["request"] is not None:
        assert summarising.sentences(told["request"]) and summarising.draw(trace)
        for one in told["request"]["devices"]:
            assert sum(one["seconds"].values()) == pytest.approx(told["request"]["seconds"])
            assert min(one["seconds"].values()) >= -1e-12
        path_s = sum(leg["seconds"] for leg in told["request"]["critical_path"])
        assert path_s <= told["request"]["seconds"] * (1 + 1e-9)
    check_events(trace)


# Shares

MESSAGES = [MessageTimes(GATEWAY, "d0", 10), MessageTimes("d0", GATEWAY, 10)]

GRID = st.integers(0, 12)
STRETCHES = st.lists(st.tuples(st.sampled_from(ORDER[:-1]), GRID, GRID), max_size=12)


@given(STRETCHES, GRID, GRID)
def test_each_instant_counts_once_for_the_first_in_order(
    stretches: list[tuple[str, int, int]], begin: int, length: int
) -> None:
    """Against looking at every unit of time by itself."""
    plain = dict.fromkeys(ORDER, 0.0)
    for unit in range(begin, begin + length):
        there = {what for what, start, stop in stretches if start <= unit and unit + 1 <= stop}
        plain[next((what for what in ORDER if what in there), REST)] += 1.0
    found = shares(float(begin), float(begin + length), [(w, float(a), float(b)) for w, a, b in stretches])
    assert found == plain


def test_what_comes_while_others_are_computed_waits_for_them() -> None:
    other = row(COMPUTING, COMPUTE, 0.5, 3.0)
    other[7] = "g/boot/2"
    schedule = TimedSchedule({"d0": [Receive(0), Compute(1.0, ""), Send(1)]}, MESSAGES)
    spans = [
        row(REQUESTS, REQUEST, 0.0, 4.0),
        row("gateway", SEND, 0.0, 0.25, peer="n-d0", transfer=0),
        other,
        row(COMPUTING, COMPUTE, 3.0, 4.0),
        row(COMPUTING, SEND, 4.0, 4.0, transfer=1),
    ]
    trace = read(document(schedule, {"d0": spans}, 4.0))
    mine, _ = rows(trace, the_request(trace), None)
    assert {k: v for k, v in mine.seconds.items() if v} == {WAIT: 0.5, OTHERS: 2.5, COMPUTE: 1.0}
    path = [(leg.kind, leg.source, leg.seconds) for leg in critical_path(trace, the_request(trace))]
    assert path == [("message", GATEWAY, 0.25), ("between", "d0", 2.75), ("compute", "d0", 1.0)]


def test_other_requests_that_are_computed_meanwhile_are_told_apart() -> None:
    other = row(COMPUTING, COMPUTE, 1.0, 2.0)
    other[7] = "g/boot/2"
    spans = {
        "d0": [
            row(COMPUTING, COMPUTE, 0.0, 1.0),
            other,
            row(COMPUTING, COMPUTE, 2.5, 3.0),
            row(REQUESTS, REQUEST, 0.0, 4.0),
        ]
    }
    trace = read(document(TimedSchedule({"d0": [Send(0)]}, []), spans, 4.0))
    mine, gateway = rows(trace, the_request(trace), None)
    assert mine.predicted is None and gateway.device == GATEWAY
    assert {k: v for k, v in mine.seconds.items() if v} == {COMPUTE: 1.5, OTHERS: 1.0, REST: 0.5, IDLE: 1.0}


# Requests


def test_the_typical_request_is_the_median_of_those_that_are_whole() -> None:
    def request(start: float, stop: float, name: str = "photos") -> list[Any]:
        found = row(REQUESTS, REQUEST, start, stop)
        found[4] = name
        return found

    spans = {
        "d0": [
            request(0, 9),
            request(10, 13),
            request(20, 21),
            request(30, 32, "photos@0123456789abcdef"),
            request(40, 80, "letters"),
        ],
        "d1": [row(COMPUTING, COMPUTE, 9.5, 9.6)],
    }
    full = document(TimedSchedule({}, []), spans, 90.0)
    trace = read(full)
    assert len(trace.requests()) == 4 and the_request(trace).took_s == 2.0  # of 9, 3, 1 and 2
    full["devices"][1]["forgotten"] = 1  # what d1 did for the first request may be gone
    trace = read(full)
    assert len(trace.requests()) == 3 and the_request(trace).took_s == 2.0
    assert typical([]) is None


def test_waits_that_follow_each_other_are_one() -> None:
    rows_ = [
        row(COMPUTING, WAIT, 0.0, 1.0, transfer=3),
        row(COMPUTING, WAIT, 1.00002, 2.0, transfer=3),
        row(COMPUTING, WAIT, 2.00002, 3.0, transfer=4),
        row(COMPUTING, WAIT, 4.0, 5.0, transfer=4),
    ]
    trace = read(document(TimedSchedule({}, []), {"d0": rows_}, 5.0))
    assert [(bar.start_s, bar.stop_s) for bar in trace.bars] == [
        pytest.approx((0.0, 2.0)),
        pytest.approx((2.00002, 3.0)),
        pytest.approx((4.0, 5.0)),
    ]
    assert join_waits(trace.bars) == list(trace.bars)


@pytest.mark.parametrize("broken", [{}, {"devices": []}, {"devices": [{}], "plans": [], "began_s": 0}])
def test_what_is_no_trace_is_said(broken: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match="cannot be read"):
        read(broken)


# Perfetto


def check_events(trace: Trace) -> list[dict[str, Any]]:
    """What ui.perfetto.dev asks of the events, and what we promise of them."""
    whole = json.loads(json.dumps(trace_events(trace), allow_nan=False))
    events: list[dict[str, Any]] = whole["traceEvents"]
    for event in events:
        assert {"ph", "ts", "dur", "pid", "tid"} <= event.keys()
        assert event["ts"] >= 0 and event["dur"] >= 0 and event["ph"] in "XMsf"
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    ends: dict[tuple[int, int], float] = {}
    for event in timed:
        if event["ph"] == "X":
            thread = event["pid"], event["tid"]
            assert event["ts"] >= ends.get(thread, 0.0) - 0.002  # rounded to nanoseconds
            ends[thread] = event["ts"] + event["dur"]
    arrows = defaultdict(list)
    for event in timed:
        if event["ph"] in "sf":
            arrows[event["id"]].append(event["ph"])
    assert all(sorted(phases) == ["f", "s"] for phases in arrows.values())
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named == set(ends)
    return events


@given(SEEDS, COUNTS)
@settings(max_examples=40)
def test_a_trace_is_a_valid_document_for_perfetto(seed: int, count: int) -> None:
    found, _ = simulated(seed, count)
    trace = read(as_traced(found))
    events = check_events(trace)
    assert sum(event["ph"] == "X" for event in events) == len(trace.bars)
    assert sum(event["ph"] == "s" for event in events) == len(found.schedule.messages)
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == set(found.schedule.steps)


BARS = st.lists(st.tuples(st.sampled_from("ab"), GRID, GRID), max_size=15)


@given(BARS)
def test_lanes_take_what_would_overlap(drawn: list[tuple[str, int, int]]) -> None:
    trace = read(document(TimedSchedule({}, []), {"d0": [row("x", COMPUTE, 0.0, 1.0)]}, 1.0))
    bars = [
        replace(trace.bars[0], lane=lane, start_s=float(start), stop_s=float(start + length))
        for lane, start, length in drawn
    ]
    placed = lanes(bars)
    assert sorted(id(bar) for bar, _ in placed) == sorted(map(id, bars))
    by_lane = defaultdict(list)
    for bar, lane in placed:
        assert lane[0] == bar.lane
        by_lane[lane].append(bar)
    for mine in by_lane.values():
        assert all(a.stop_s <= b.start_s for a, b in pairwise(mine))
    for name in "ab":  # as many as are there at once, and no more
        own = sorted((bar.start_s, bar.stop_s) for bar in bars if bar.lane == name)
        at_once = [1 + sum(stop > start for _, stop in own[:n]) for n, (start, _) in enumerate(own)]
        assert sum(lane[0] == name for lane in by_lane) == max(at_once, default=0)
