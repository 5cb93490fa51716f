"""A trace of two real agents: both compute, what one sends the other receives, and no thread does two things at once."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalCluster, edgepart
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, infer

pytestmark = pytest.mark.processes

PATH = light("squeezenet")
REQUESTS = 4


OTHER_CLOCK = "import time\nreal = time.monotonic\ntime.monotonic = lambda: real() + 4000.0\n"
"""As on a machine that was started at another time."""


@pytest.mark.nightly
def test_where_the_time_of_a_divided_model_goes(tmp_path: Path) -> None:
    output = tmp_path / "trace.json"
    (tmp_path / "sitecustomize.py").write_text(OTHER_CLOCK)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    env = {"b": {"PYTHONPATH": path}}
    with LocalCluster(["a", "b"], options=("--threads", "1", "--no-mdns"), env=env) as cluster:
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
    sends_are_received(events, 1e6 * max(device["clock_error_s"] for device in found["devices"]))


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


def sends_are_received(events: list[dict[str, Any]], error_us: float) -> None:
    found: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    devices = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for event in events:
        args = event.get("args", {})
        ours = args.get("peer") == devices[event["pid"]]
        if event.get("cat") in ("write", "receive") and "transfer" in args and not ours:
            found[args["request"], args["transfer"]][event["cat"]].append(event)
    # A write that ends after its request does may end after the recording, too: at most the last one of the sender.
    both = [one for one in found.values() if one["write"] and one["receive"]]
    assert both and len(found) - len(both) <= 1
    for one in both:
        (write,), (receive,) = one["write"], one["receive"]
        # The last byte is there after the first one was written, by as much as the clocks are sure of.
        assert write["ts"] <= receive["ts"] + receive["dur"] + error_us
        assert receive["ts"] - write["ts"] < 60e6
    arrows = [sum(event["ph"] == phase for event in events) for phase in "sf"]
    assert arrows == [len(both), len(both)]
