"""Engines of a device: their JSON, what they can run, and drift."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.devices.cluster_json import cluster_from_json, cluster_to_json
from edgepart.planner.devices.engine import Engine
from edgepart.planner.errors import UsageError

CUDA = Engine(
    "cuda",
    "CUDAExecutionProvider",
    {"conv": 1e11, "conv/8": 1e10},
    {"elementwise": 1e10},
    flops_per_s=1e11,
    memory_bytes_per_s=2e10,
    segment_s=1e-4,
    kernel_s=1e-6,
    copy_s=1e-5,
    copy_bytes_per_s=4e9,
    memory_bytes=2e9,
    threads=2,
    refused=frozenset({"ab", "cd"}),
)
NEAR = Engine("near", "XnnpackExecutionProvider", precision="float16")
JETSON = Device("jetson", "k", 1e9, 1e9, 8e9, engines=(CUDA, NEAR))
PLAIN = Device("plain", "k", 1e9, 1e9, 8e9)


def document(**changed: Any) -> dict[str, Any]:
    """A cluster whose only engine has other entries; None takes one away."""
    made: dict[str, Any] = json.loads(
        json.dumps(cluster_to_json(Cluster((replace(JETSON, engines=(CUDA,)),))))
    )
    (engine,) = made["devices"][0]["engines"]
    engine.update(changed)
    made["devices"][0]["engines"] = [{key: value for key, value in engine.items() if value is not None}]
    return made


def test_engines_are_in_the_json_and_optional() -> None:
    cluster = Cluster((JETSON, PLAIN))
    made = json.loads(json.dumps(cluster_to_json(cluster)))
    assert cluster_from_json(made) == cluster
    assert "engines" not in made["devices"][1]
    assert made["devices"][0]["engines"][0]["refused"] == ["ab", "cd"]
    assert {"copy_bytes_per_s", "memory_bytes", "refused"}.isdisjoint(made["devices"][0]["engines"][1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": None}, r"engines\[0\]: expected a name under 'name'"),
        ({"provider": 3}, "'provider'"),
        ({"flops_per_s": 0}, "'flops_per_s'"),
        ({"memory_bytes_per_s": "fast"}, "'memory_bytes_per_s'"),
        ({"copy_bytes_per_s": -1}, "'copy_bytes_per_s'"),
        ({"copy_s": float("nan")}, "'copy_s'"),
        ({"memory_bytes": 0}, "'memory_bytes'"),
        ({"families": {"conv/x": 1.0}}, "families"),
        ({"families": {"conv": 0}}, "'conv'"),
        ({"moves": [1]}, "moves"),
        ({"precision": 16}, "'precision'"),
        ({"refused": [1]}, "'refused'"),
        ({"refused": "ab"}, "'refused'"),
        ({"threads": 0}, "'threads'"),
    ],
)
def test_an_engine_that_is_none_is_refused(changed: dict[str, Any], message: str) -> None:
    cluster_from_json(document())
    with pytest.raises(UsageError, match=message):
        cluster_from_json(document(**changed))


def test_two_engines_of_one_name_and_no_engines_at_all_are_refused() -> None:
    made = document()
    made["devices"][0]["engines"] *= 2
    with pytest.raises(UsageError, match="two engines share a name"):
        cluster_from_json(made)
    made["devices"][0]["engines"] = ["cuda"]
    with pytest.raises(UsageError, match=r"engines\[0\]: expected an object"):
        cluster_from_json(made)


def test_an_engine_computes_its_families_and_their_kin() -> None:
    assert CUDA.computes("conv", "") and CUDA.computes("large", "") and CUDA.computes("move", "elementwise")
    assert not CUDA.computes("gemm", "") and not CUDA.computes("elementwise", "pool")


def test_a_device_that_drifts_slows_its_engines_too() -> None:
    slow = JETSON.with_drift(2.0)
    engine = slow.engine("cuda")
    assert isinstance(engine, Engine)
    assert (engine.families["conv"], engine.segment_s, engine.copy_bytes_per_s) == (5e10, 2e-4, 2e9)
    assert slow.with_drift(1.0).engines == JETSON.engines


def test_copies_cost_each_value_and_each_byte_where_there_are_copies() -> None:
    assert CUDA.copying_s(3, 8e9) == pytest.approx(3e-5 + 2.0)
    assert NEAR.copying_s(3, 8e9) == 0.0


def test_an_engine_is_found_by_its_name() -> None:
    assert JETSON.engine("cuda") is CUDA and JETSON.engine("") is JETSON
    with pytest.raises(UsageError, match="plain has no engine 'cuda'; it has its CPU"):
        PLAIN.engine("cuda")


def test_a_cluster_without_what_rounds_and_without_engines() -> None:
    cluster = Cluster((JETSON, PLAIN))
    assert cluster.with_engines(exact=False) is cluster
    assert [e.name for e in cluster.with_engines(exact=True).devices[0].engines] == ["cuda"]
    assert all(not device.engines for device in cluster.without_engines().devices)
