"""Workload files: the example means what it says, what cannot be meant is named, and what is written is read again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.errors import ModelError
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.problem import read
from edgepart.planner.placing.problem.read import looks_like_workload, read_workload, workload_of
from edgepart.planner.placing.problem.schedule import PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.problem.write import answer_document
from tests.planner.placing.workload_files import workload_document
from tests.planner.placing.workloads import workloads

BRANCHES: dict[str, Any] = {
    "schema": "edgepart-workload/1",
    "name": "branches",
    "devices": [
        {"name": "a", "kind": "acc", "memory_bytes": 3e6, "count": 2},
        {"name": "host", "kind": "cpu", "memory_bytes": 1e8},
    ],
    "default_link": {"bytes_per_s": 1e8, "latency_s": 1e-4},
    "links": [{"a": "a0", "b": "host", "bytes_per_s": 1e9, "latency_s": 0.0, "up_bytes_per_s": 5e8}],
    "nodes": [
        {"id": "stem", "op": "Conv", "compute_s": {"acc": 0.002, "cpu": 0.02}, "memory_bytes": 500000},
        {"id": "left", "op": "Conv", "compute_s": {"acc": 0.006, "a1": 0.005}, "colocate": "g"},
        {"id": "right", "compute_s": {"host": 0.05}},
        {"id": "join"},
    ],
    "edges": [
        {"source": "stem", "target": "left", "bytes": 2e5, "tensor": "s"},
        {"source": "stem", "target": "right", "bytes": 2e5, "tensor": "s"},
        {"source": "left", "target": "join", "bytes": 1e5, "transfer_s": {"a0->a1": 0.004}},
        {"source": "right", "target": "join", "bytes": 1e5},
    ],
}


def test_what_a_file_says() -> None:
    found = read_workload(json.dumps(BRANCHES))
    assert [machine.name for machine in found.machines] == ["a0", "a1", "host"]
    assert [task.compute_s for task in found.tasks] == [
        (0.002, 0.002, 0.02),
        (0.006, 0.005, inf),
        (inf, inf, 0.05),
        (0.0, 0.0, 0.0),
    ]
    assert [(t.source, t.readers) for t in found.tensors] == [(0, (1, 2)), (1, (3,)), (2, (3,))]
    assert found.transfer_s(found.tensors[1], 0, 1) == 0.004
    assert found.transfer_s(found.tensors[1], 1, 0) == 1e-4 + 1e5 / 1e8
    assert (found.bytes_per_s[0][2], found.bytes_per_s[2][0], found.latency_s[0][2]) == (1e9, 5e8, 0.0)
    assert found.overlap and found.tasks[1].colocate == "g" and found.machines[2].kind == "cpu"


def test_a_device_that_only_another_one_reaches_has_a_link_over_it() -> None:
    document = copy.deepcopy(BRANCHES)
    del document["default_link"]
    document["links"].append({"a": "a1", "b": "host", "bytes_per_s": 2e9, "latency_s": 3e-4})
    found = workload_of(document)
    assert (found.bytes_per_s[0][1], found.latency_s[0][1]) == (1e9, 3e-4)
    assert (found.bytes_per_s[1][0], found.latency_s[1][0]) == (5e8, 3e-4)
    assert found.transfer_s(found.tensors[0], 0, 1) == 3e-4 + 2e5 / 1e9


def test_the_paper_s_two_hops_take_twenty_seconds() -> None:
    """Moirai, section III-C: 100 MB over a link of 10 MB/s and one of 5 MB/s."""
    document = {
        "schema": BRANCHES["schema"],
        "name": "hops",
        "devices": [{"name": name, "kind": "k"} for name in "abc"],
        "links": [{"a": "a", "b": "b", "bytes_per_s": 10e6}, {"a": "b", "b": "c", "bytes_per_s": 5e6}],
        "nodes": [{"id": name, "compute_s": {device: 1.0}} for name, device in zip("st", "ac", strict=True)],
        "edges": [{"source": "s", "target": "t", "bytes": 100e6}],
    }
    found = workload_of(document)
    assert found.transfer_s(found.tensors[0], 0, 2) == 20.0


def test_media_say_what_crosses_them() -> None:
    air = {"name": "air", "devices": ["a0"]}
    cable = {"name": "cable", "links": [["a1", "host"]]}
    found = workload_of(BRANCHES | {"media": [air, cable]})
    assert [(one.name, one.pairs) for one in found.media] == [
        ("air", frozenset({(0, 1), (1, 0), (0, 2), (2, 0)})),
        ("cable", frozenset({(1, 2), (2, 1)})),
    ]
    assert found.bytes_per_s == workload_of(BRANCHES).bytes_per_s


def test_a_way_over_another_device_occupies_it_and_the_media_on_the_way() -> None:
    document = copy.deepcopy(BRANCHES)
    del document["default_link"]
    document["links"].append({"a": "a1", "b": "host", "bytes_per_s": 2e9, "latency_s": 3e-4})
    document["media"] = [{"name": "air", "links": [["a0", "host"], ["a1", "host"]]}]
    found = workload_of(document)
    assert found.bytes_per_s[0][1] == pytest.approx(1 / (1 / 1e9 + 1 / 2e9))
    assert found.bytes_per_s[0][2] == 1e9
    pairs = {one.name: one.pairs for one in found.media}
    assert pairs["air"] == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert pairs["what host receives"] == {(0, 2), (1, 2), (0, 1), (1, 0)}
    assert pairs["what host sends"] == {(2, 0), (2, 1), (0, 1), (1, 0)}


def put(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


def add(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document[key].append(value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("schema", value="edgepart-workload/2"), "'schema', found 'edgepart-workload/2'"),
        (drop("schema"), "'schema'"),
        (drop("devices"), "list under 'devices'"),
        (put("devices", value=[]), "'devices' is empty"),
        (put("devices", 1, "name", value="a1"), "another device called 'a1'"),
        (put("devices", 0, "count", value=0), "whole number of 1 or more under 'count'"),
        (put("devices", 0, "count", value=1e9), "whole number"),
        (put("devices", 0, "count", value=10**9), "devices, the most"),
        (put("devices", 1, "memory_bytes", value=-1), r"devices\[1\]: .*'memory_bytes', found -1"),
        (put("default_link", "bytes_per_s", value=0), "nothing moves at 0"),
        (put("default_link", "latency_s", value=-1), "'latency_s'"),
        (drop("default_link"), "no link from 'a0' to 'a1'"),
        (put("links", 0, "down_bytes_per_s", value=1), r"links\[0\]: a link has no 'down_bytes_per_s'"),
        (put("default_link", "up_bytes_per_s", value=1), "default_link: a link has no 'up_bytes_per_s'"),
        (put("links", 0, "b", value="host2"), r"links\[0\]: there is no device 'host2'"),
        (put("links", 0, "b", value="a0"), "are one device"),
        (add("links", {"a": "host", "b": "a0", "bytes_per_s": 1}), "are linked already"),
        (put("nodes", value=[]), "'nodes' is empty"),
        (put("nodes", 1, "id", value="stem"), "another node 'stem'"),
        (put("nodes", 1, "id", value=7), "text under 'id'"),
        (put("nodes", 0, "compute_s", "acc", value=-0.1), r"nodes\[0\] \('stem'\).compute_s: .*found -0.1"),
        (put("nodes", 0, "compute_s", "acc", value=float("nan")), "found nan"),
        (put("nodes", 0, "compute_s", "acc", value=float("inf")), "found inf"),
        (put("nodes", 0, "compute_s", "acc", value=None), "found None"),
        (put("nodes", 0, "compute_s", "acc", value=True), "found True"),
        (put("nodes", 0, "compute_s", "acc", value="1"), "found '1'"),
        (put("nodes", 0, "compute_s", "acc", value=10**400), "found 1000"),
        (put("nodes", 0, "compute_s", "tpu", value=0.1), "no device, and no kind, 'tpu'"),
        (put("nodes", 0, "compute_s", value={}), "can run on no device"),
        (put("nodes", 0, "compute_s", value=[1]), "expected an object"),
        (put("nodes", 0, "memory_bytes", value=-5), "'memory_bytes', found -5"),
        (drop("edges", 0, "bytes"), r"edges\[0\]: .*'bytes', found nothing"),
        (put("edges", 0, "bytes", value=1e5), "other bytes"),
        (put("edges", 0, "source", value="nobody"), "no node 'nobody'"),
        (put("edges", 2, "transfer_s", value={"a0->b": 1.0}), "names no two devices"),
        (put("edges", 2, "transfer_s", value={"a0": 1.0}), "names no two devices"),
        (put("edges", 2, "transfer_s", value={"a0->a0": 1.0}), "takes no time"),
        (put("edges", 2, "transfer_s", value={"a0->a1": -1.0}), "found -1.0"),
        (add("edges", {"source": "join", "target": "stem", "bytes": 1}), "wait for each other"),
        (add("edges", {"source": "join", "target": "join", "bytes": 1}), "'join' among them"),
        (add("nodes", {"id": "lost"}), r"disconnected: .*'lost' \(2 parts\)"),
        (put("media", value=[{"name": "air"}]), r"media\[0\]: say which 'devices' or which 'links' share it"),
        (put("media", value=[{"devices": ["a0"]}]), "text under 'name'"),
        (put("media", value=[{"name": "air", "devices": ["b"]}]), "no device 'b'"),
        (put("media", value=[{"name": "air", "devices": "a0"}]), "list under 'devices'"),
        (put("media", value=[{"name": "air", "links": [["a0"]]}]), "names of two devices"),
        (put("media", value=[{"name": "air", "links": [["a0", "a0"]]}]), "names of two devices"),
        (put("media", value=[{"name": "air", "links": [["a0", 5]]}]), "no device '5'"),
        (
            put("media", value=[{"name": "air", "devices": [], "bytes_per_s": 1}]),
            "a medium has no 'bytes_per_s'",
        ),
        (put("media", value=[{"name": "air", "devices": []}] * 2), "another medium called 'air'"),
        (put("media", value=[{"name": f"m{n}", "devices": []} for n in range(65)]), "64 are the most"),
        (put("overlap", value="no"), "true or false under 'overlap'"),
        (put("name", value=""), "text under 'name'"),
    ],
)
def test_what_cannot_be_meant_is_named(change: Callable[[dict[str, Any]], None], said: str) -> None:
    document = copy.deepcopy(BRANCHES)
    change(document)
    with pytest.raises(ModelError, match=said):
        workload_of(document)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"schema": 1}', b"\xff{"])
def test_what_is_no_workload_is_refused(text: str | bytes) -> None:
    with pytest.raises(ModelError):
        read_workload(text)


def test_limits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_BYTES", "MOST_NODES", "MOST_EDGES", "MOST_COSTS"):
        with monkeypatch.context() as patch:
            patch.setattr(read, name, 3)
            with pytest.raises(ModelError, match=r"most that is read"):
                read_workload(json.dumps(BRANCHES))


def test_parts_that_are_meant_are_read() -> None:
    document = copy.deepcopy(BRANCHES) | {"disconnected": True}
    document["nodes"].append({"id": "apart"})
    assert len(workload_of(document).tasks) == 5


def test_what_looks_like_a_workload() -> None:
    assert looks_like_workload(b'\xef\xbb\xbf\n {"schema"') and looks_like_workload(b"[]", "W.JSON")
    assert not looks_like_workload(b"\x08\x07", "model.onnx") and not looks_like_workload(b"", "m")


@given(workloads(memory=True, partial=True, media=True), st.booleans())
def test_what_is_written_is_read_again(workload: Workload, overlap: bool) -> None:
    workload = replace(workload, overlap=overlap)
    text = json.dumps(workload_document(workload), allow_nan=False)
    assert read_workload(text) == workload


def test_a_latency_that_differs_by_direction_is_written_with_each_tensor() -> None:
    there = read_workload(json.dumps(BRANCHES))
    uneven = replace(there, latency_s=((0.0, 1.0, 0.0), (2.0, 0.0, 0.0), (0.0, 0.0, 0.0)))
    again = read_workload(json.dumps(workload_document(uneven)))
    for mine, its in zip(uneven.tensors, again.tensors, strict=True):
        for pair in ((0, 1), (1, 0), (1, 2)):
            assert again.transfer_s(its, *pair) == uneven.transfer_s(mine, *pair)


def test_an_answer_can_be_replayed_from_what_it_says() -> None:
    workload = workload_of(BRANCHES)
    schedule = dispatch(workload, (0, 1, 2, 1))
    found = PlacementFound((0, 1, 2, 1), schedule.makespan_s, schedule, bound_s=0.01, why="so")
    document = json.loads(
        json.dumps(answer_document(workload, found, "heft", "latency", 0.5), allow_nan=False)
    )
    assert document["placement"] == {"stem": "a0", "left": "a1", "right": "host", "join": "a1"}
    assert document["value_s"] == schedule.makespan_s and document["strategy"] == "heft"
    assert document["gap"] == pytest.approx(1 - 0.01 / schedule.makespan_s)
    first = document["transfers"][0]
    assert (first["source"], first["from"], document["start_s"]["stem"]) == ("stem", "a0", 0.0)
    assert {(t["source"], *t["targets"], t["to"]) for t in document["transfers"]} == {
        ("stem", "left", "a1"),
        ("stem", "right", "host"),
        ("right", "join", "a1"),
    }
    many = answer_document(
        workload,
        replace(found, schedule=None, replicas=((0, 1), (1,), (2,), (1,))),
        "pipeline",
        "throughput",
        0.5,
    )
    assert many["replicas"] == {"stem": ["a0", "a1"]} and "start_s" not in many
