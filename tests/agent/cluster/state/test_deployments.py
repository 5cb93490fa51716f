"""The map of deployments: it merges to the same in any order, and its file is checked."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.cluster.state.deployments import MAX_COUNTER, DeploymentMap, from_json, to_json
from edgepart.agent.wire.control import Deployment, Version
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import UsageError

versions = st.builds(Version, st.integers(1, 3), st.sampled_from(["a", "b"]))
options = st.builds(
    DeployOptions,
    shapes=st.dictionaries(
        st.sampled_from("xy"), st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=2
    ),
    axis=st.sampled_from([None, "height"]),
    devices=st.sampled_from([(), ("pi",)]),
    memory_limit_bytes=st.sampled_from([None, 10**9]),
    bindings=st.sampled_from([0, 8]),
    search_budget_s=st.sampled_from([None, 2.5]),
)
entries = st.builds(
    Deployment,
    st.sampled_from("mno"),
    st.sampled_from("uv"),
    st.integers(0, 9),
    options,
    versions,
    st.booleans(),
)
maps = st.lists(entries, max_size=6)


def merged(*parts: list[Deployment]) -> DeploymentMap:
    result = DeploymentMap()
    for part in parts:
        result.merge(part)
    return result


@given(maps, maps, maps)
@settings(max_examples=100)
def test_merging_is_commutative_associative_and_idempotent(
    a: list[Deployment], b: list[Deployment], c: list[Deployment]
) -> None:
    assert merged(a, b) == merged(b, a)
    assert merged(list(merged(a, b)), c) == merged(a, list(merged(b, c)))
    assert merged(a, b, a) == merged(a, b)
    assert merged(a).merge(a) == ()


@given(maps)
@settings(max_examples=50)
def test_the_file_gives_back_what_was_written(rows: list[Deployment]) -> None:
    before = tuple(merged(rows))
    assert from_json(json.loads(json.dumps(to_json(before)))) == before


def test_a_later_write_wins_and_a_tombstone_is_a_write() -> None:
    here, there = DeploymentMap(), DeploymentMap()
    there.merge([here.put("a", "net", "m1", 1, DeployOptions())])
    tombstone = there.delete("b", "net")
    later = here.put("a", "net", "m2", 1, DeployOptions())
    assert (tombstone.version.counter, later.version.counter) == (2, 2)
    here.merge([tombstone])
    assert here.get("net") is None  # of equal counters, b's counts
    assert here.put("a", "net", "m3", 1, DeployOptions()).version == Version(3, "a")
    assert [entry.model for entry in here.list_live()] == ["m3"]


def test_deleting_what_is_not_there_says_what_is() -> None:
    deployments = DeploymentMap()
    deployments.put("a", "net", "m", 1, DeployOptions())
    with pytest.raises(UsageError, match="no deployment 'nett'; deployed: net"):
        deployments.delete("a", "nett")


@pytest.mark.parametrize("counter", [0, -1, MAX_COUNTER])
def test_a_counter_that_no_honest_member_writes_is_not_taken(counter: int) -> None:
    deployments = DeploymentMap()
    deployments.merge([Deployment("net", "m", 1, DeployOptions(), Version(counter, "z"))])
    assert list(deployments) == []


GOOD: dict[str, Any] = to_json(
    [Deployment("net", "m", 1, DeployOptions(shapes={"x": (1,)}), Version(1, "a"))]
)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("format",), 2, "format 2"),
        (("deployments",), {}, "deployments: expected list"),
        (("deployments", 0), 1, r"deployments\[0\]: expected dict"),
        (("deployments", 0, "name"), None, r"\[0\].name: expected str"),
        (("deployments", 0, "model_bytes"), True, "model_bytes: expected int"),
        (("deployments", 0, "version", "counter"), "1", "counter: expected int"),
        (("deployments", 0, "deleted"), 0, "deleted: expected bool"),
        (("deployments", 0, "options", "shapes", "x"), [1.5], r"shapes\['x'\]: expected int"),
        (("deployments", 0, "options", "axis"), 3, "axis: expected str"),
        (("deployments", 0, "options", "bindings"), "8", "bindings: expected int"),
        (("deployments", 0, "options", "search_budget_s"), "8", "search_budget_s: expected float"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(path: tuple[Any, ...], value: object, where: str) -> None:
    document = copy.deepcopy(GOOD)
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(UsageError, match=where):
        from_json(document)


def test_a_file_from_before_there_were_bindings_can_be_read() -> None:
    document = copy.deepcopy(GOOD)
    del document["deployments"][0]["options"]["bindings"]
    del document["deployments"][0]["options"]["search_budget_s"]
    (entry,) = from_json(document)
    assert entry.options == DeployOptions(shapes={"x": (1,)})


def test_the_file_must_be_an_object() -> None:
    with pytest.raises(UsageError, match=r"deployments\.json: expected dict, found list"):
        from_json([])
