"""A model that is larger than what any device may use: real agents, and what the system says they take."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pytest
from benchmarks.models.builder import Builder
from benchmarks.models.model import save

from edgepart.agent.host.process_memory import SERVING_BYTES, WORKER_BYTES
from edgepart.agent.host.system import own_bytes
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.errors import ClusterError
from tests.processes.asking import deploy, deploy_over, differences, infer, run_alone, undeploy, workers

pytestmark = pytest.mark.processes

LAYERS, WIDTH = 15, 1024
WEIGHT_BYTES = LAYERS * WIDTH * WIDTH * 4
LIMIT_BYTES = 30_000_000
ROUNDS = 5


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """63 MB of dense layers."""
    b = Builder("large")
    x = b.input("x", (1, WIDTH))
    for _ in range(LAYERS):
        x = b.add("Relu", b.linear(x, WIDTH, WIDTH, gain=2.0))
    b.output(x, "y")
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    save(b.model(), path)
    return path


def resident(cluster: LocalCluster) -> dict[str, int]:
    """Of each agent, and of its workers what they do not share."""
    return {one.name: _resident(one) for one in cluster.living}


def _resident(agent: LocalAgent) -> int:
    itself = psutil.Process(agent.addresses["pid"]).memory_info().rss
    return int(itself) + sum(own_bytes(one.pid) for one in workers(agent))


def predicted(cluster: LocalCluster, name: str) -> dict[str, int]:
    """By device, the most that its program is said to take."""
    with urllib.request.urlopen(f"{cluster.first.url}/api/models/{name}/plan", timeout=10) as answer:
        devices = json.load(answer)["devices"]
    return {device: int(one["peak_memory_bytes"]) for device, one in devices.items()}


def test_it_deploys_answers_the_same_and_keeps_to_the_limit(trio: LocalCluster, large: Path) -> None:
    idle = resident(trio)
    assert WEIGHT_BYTES > 2 * LIMIT_BYTES
    deploy_over(trio, ["a", "b", "c"], large, "large", "--memory-limit", str(LIMIT_BYTES))
    inputs = {"x": np.random.default_rng(0).standard_normal((1, WIDTH), np.float32)}
    expected = run_alone(large, inputs)
    for _ in range(ROUNDS):
        for agent in trio.living:
            assert not differences(infer(agent, "large", inputs), expected)
    taken = {name: after - idle[name] for name, after in resident(trio).items()}
    said = predicted(trio, "large")
    undeploy(trio, "large")
    assert sum(taken.values()) > 0.9 * WEIGHT_BYTES
    assert max(said.values()) <= LIMIT_BYTES
    for name, nbytes in taken.items():
        assert nbytes <= 1.1 * (said[name] + SERVING_BYTES + WORKER_BYTES), (taken, said)


@pytest.mark.nightly
def test_what_is_said_to_be_enough_is(trio: LocalCluster, large: Path) -> None:
    with pytest.raises(ClusterError, match="does not fit, however it is divided") as caught:
        deploy(trio, large, "large", "--memory-limit", "15000000")
    enough = max(int(text.replace(",", "")) for text in re.findall(r"([\d,]+) would do", str(caught.value)))
    assert WEIGHT_BYTES / 3 < enough < WEIGHT_BYTES / 2
    deploy_over(trio, ["a", "b", "c"], large, "large", "--memory-limit", str(enough))
    undeploy(trio, "large")
