"""A trace of two real agents: both compute, what one sends the other receives, and no thread does two things at once."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalCluster, edgepart
from edgepart.planner.model import load_graph
from tests.processes.asking import deploy, infer

pytestmark = pytest.mark.processes

PATH = light("squeezenet")
REQUESTS = 4


def test_where_the_time_of_a_divided_model_goes(tmp_path: Path) -> None:
    output = tmp_path / "trace.json"
    with LocalCluster(["a", "b"], options=("--threads", "1", "--no-mdns")) as cluster:
        deploy(cluster, PATH, "squeezenet", "--strategy", "bbgrap", "--axis", "height")
        state = str(cluster.first.state)
        command = ["trace", "squeezenet", "-o", str(output), "-n", str(REQUESTS), "--state", state]
        found = edgepart(*command, timeout_s=120)
        check(found, json.loads(output.read_text())["traceEvents"])

        # The other one is the gateway now, and a device dies between two traces.
        asked = cluster.agents["b"]
        second = edgepart(*command[:-1], str(asked.state), timeout_s=120)
        assert second["gateway"] == "b" and second["request"]["devices"][-1]["device"] is None
        cluster.first.kill()
        cluster.wait_for_members(1)
        inputs = sample_inputs(load_graph(PATH))
        assert cluster.wait(lambda: infer(asked, "squeezenet", inputs), "an answer of the one that is left")
        last = edgepart(*command[:-1], str(asked.state), timeout_s=120)
        assert [one["name"] for one in last["devices"]] == ["b"] and last["requests"]["lost"] == 0


def check(found: dict[str, Any], events: list[dict[str, Any]]) -> None:
    assert found["missing"] == {} and found["requests"] == {"sent": REQUESTS, "lost": 0, "traced": REQUESTS}
    assert all(device["forgotten"] == 0 for device in found["devices"])
    request = found["request"]
    by_device = {one["device"]: one for one in request["devices"]}
    assert set(by_device) == {"a", "b", None}
    for name in ("a", "b"):
        assert by_device[name]["seconds"]["compute"] > 0
        assert by_device[name]["predicted_s"]["compute"] > 0
        assert sum(by_device[name]["seconds"].values()) == pytest.approx(request["seconds"])
    assert request["critical_path"] and request["waits"]
    path_s = sum(leg["seconds"] for leg in request["critical_path"])
    assert path_s == pytest.approx(request["seconds"], rel=0.05)
    no_overlaps(events)
    sends_are_received(events)


def no_overlaps(events: list[dict[str, Any]]) -> None:
    titles = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    # Nothing had to be moved to a second lane: what one thread does, it does one by one.
    assert {"compute", "gateway", "requests", "queue", "HTTP", "sending to b", "receiving from b"} <= set(
        titles.values()
    )
    assert not [title for title in titles.values() if title[-1].isdigit()]
    ends: dict[tuple[int, int], float] = {}
    for event in events:
        if event["ph"] == "X":
            thread = event["pid"], event["tid"]
            assert event["ts"] >= ends.get(thread, 0.0) - 0.002, event
            ends[thread] = event["ts"] + event["dur"]


def sends_are_received(events: list[dict[str, Any]]) -> None:
    counts: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    devices = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for event in events:
        args = event.get("args", {})
        if (
            event.get("cat") in ("write", "receive")
            and "transfer" in args
            and args["peer"] != devices[event["pid"]]
        ):
            counts[args["request"], args["transfer"]][event["cat"] == "receive"] += 1
    assert counts and all(count == [1, 1] for count in counts.values())
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == len(counts)
