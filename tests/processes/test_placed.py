"""Whole operators on real agents: every placement strategy answers as one session does, and one plan places and splits."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalCluster
from edgepart.planner.model.load import load_graph
from edgepart.planner.strategies.registry import PLACERS
from edgepart.planner.vocabulary import GUIDED
from tests.nightly import nightly
from tests.planner.placing.models import branches, forked, looped
from tests.processes.asking import deploy, differences, infer, run_alone, undeploy

pytestmark = pytest.mark.processes

UNGUIDED = [name for name in PLACERS if name not in GUIDED]
NEED_SOLVER = ("moirai", "m-sct", "getf")


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalCluster]:
    with LocalCluster(["a", "b"], options=("--threads", "1")) as cluster:
        yield cluster


def plan_of(cluster: LocalCluster, name: str) -> Any:
    with urllib.request.urlopen(f"{cluster.first.url}/api/models/{name}/plan", timeout=10) as answer:
        return json.load(answer)


def check(cluster: LocalCluster, path: Path, name: str, *options: str) -> Any:
    """Deployed, asked on every agent, and taken away again; its plan."""
    inputs = sample_inputs(load_graph(path))
    expected = run_alone(path, inputs)
    deploy(cluster, path, name, *options)
    plan = plan_of(cluster, name)
    for agent in cluster.living:
        assert differences(infer(agent, name, inputs), expected) == []
    undeploy(cluster, name)
    return plan


QUICK = ("heft",)
"""Tried every time; the others find placements in other ways, and what comes after is the same."""


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", [name if name in QUICK else nightly(name)[0] for name in UNGUIDED])
def test_placed_models_answer_as_one_session(pair: LocalCluster, tmp_path: Path, strategy: str) -> None:
    if strategy in NEED_SOLVER and find_spec("ortools") is None:
        pytest.skip("the extra 'exact' is not installed")
    path = tmp_path / "branches.onnx"
    path.write_bytes(branches(rows=96, channels=32))
    assert check(pair, path, "placed", "--strategy", strategy)["strategy"] == strategy


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", UNGUIDED)
def test_a_network_of_modules_is_placed(pair: LocalCluster, strategy: str) -> None:
    if strategy in NEED_SOLVER and find_spec("ortools") is None:
        pytest.skip("the extra 'exact' is not installed")
    assert check(pair, light("inception_v1"), "placed", "--strategy", strategy)["strategy"] == strategy


@pytest.mark.nightly
@pytest.mark.parametrize("make", [looped, *nightly(forked)])
def test_an_opaque_middle_is_placed_and_the_rest_is_split(
    pair: LocalCluster, tmp_path: Path, make: Any
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make(rows=48, channels=16))
    plan = check(pair, path, "middle", "--strategy", "bbgrap")
    assert len(plan["devices"]) == 2 and plan["strategy"] == "bbgrap"
    check(pair, path, "middle", "--strategy", "auto")
