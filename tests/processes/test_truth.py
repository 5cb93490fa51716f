"""What real agents say of themselves is so: of a deployment whose device is gone, of options that cannot be, of a model
that no device can load, of shapes that nobody gave, and of a device that was put out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.cli.local import LocalAgent, LocalCluster
from tests.nightly import nightly
from tests.processes.asking import deploy, differences, infer, run_alone, undeploy
from tests.processes.test_shapes import blurring

pytestmark = pytest.mark.processes

X = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three members; the tests of this module are one story, in which they become fewer."""
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(["pi-a", "pi-b", "pi-g"], options=("--threads", "1"), folder=folder) as found:
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return blurring(tmp_path_factory.mktemp("model") / "blur.onnx")


def typed(agent: LocalAgent, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """As a person would type it, without --json."""
    command = [sys.executable, "-m", "edgepart", *arguments, "--state", str(agent.state)]
    env = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=env)


def asked(agent: LocalAgent, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(agent.url + path, method=method, data=body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--devices", "pi-g,pi-h"), "no device is called 'pi-h'; here are pi-a, pi-b, pi-g"),
        (("--strategy", "quick"), "--strategy 'quick': give one of single"),
        (("--shape", "y=1"), "no input is called 'y'"),
    ],
)
def test_options_that_cannot_be_are_refused_once(
    cluster: LocalCluster, model: Path, options: tuple[str, ...], words: str
) -> None:
    done = typed(cluster.first, "deploy", str(model), *options)
    assert done.returncode == 2
    assert done.stderr.count(words) == 1
    assert "sending" not in done.stderr
    assert not cluster.status()["deployments"]


def test_a_model_that_no_device_can_load_ends_the_wait(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "unknown.onnx"
    shapes = {"x": [1, 4, 8], "bias": [8], "skip": [1, 4, 8], "y": [1, 4, 8]}
    *inputs, output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()
    )
    # ONNX Runtime knows this operator, and computes it on GPUs only.
    node = helper.make_node("BiasAdd", ["x", "bias", "skip"], ["y"], domain="com.microsoft")
    graph = helper.make_graph([node], "g", inputs, [output])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save_model(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    done = typed(cluster.first, "deploy", str(path))
    assert done.returncode == 1
    assert "could not load its part" in done.stderr
    assert "Nothing was deployed" in done.stderr
    assert "up to 10m until it serves (--timeout)" in done.stderr
    assert "unknown" in cluster.status(cluster.first)["failed_deployments"]
    assert typed(cluster.first, "undeploy", "unknown").returncode == 0
    assert not cluster.status(cluster.first)["failed_deployments"]


def test_a_shape_that_nobody_gave_is_assumed_and_named(cluster: LocalCluster, model: Path) -> None:
    made = deploy(cluster, model, "free", "--strategy", "single")
    assert any("x: the shape 1,3,224,224 is assumed" in note for note in made["notes"])
    (card,) = cluster.status()["deployments"]
    assert card["bindings"][0]["shapes"] == {"x": [1, 3, 224, 224]}
    undeploy(cluster, "free")


def test_devices_name_the_gateway_that_plans_are_made_for(
    cluster: LocalCluster, model: Path, tmp_path: Path
) -> None:
    leader = cluster.status()["leader"]
    document = cluster.first.type("devices")
    assert document["gateway"] == leader
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document))
    done = typed(cluster.first, "plan", str(model), "--cluster", str(path), "--strategy", "single")
    assert done.returncode == 0, done.stderr
    assert f"on {leader}" in done.stdout


def test_a_deployment_whose_device_is_gone_says_so(cluster: LocalCluster, model: Path) -> None:
    leader = cluster.agents[cluster.status()["leader"]]
    lost, asks = (agent for agent in cluster.living if agent is not leader)
    deploy(cluster, model, "net", "--devices", lost.name, "--shape", "x=1,3,16,16")
    assert asked(asks, "/v2/models/net/ready")[0] == 200
    expected = run_alone(model, {"x": X})
    assert not differences(infer(asks, "net", {"x": X}), expected)

    lost.kill()
    cluster.wait(lambda: asked(asks, "/v2/models/net/ready")[0] == 503, "the deployment not to be ready")

    status, told = asked(asks, "/v2/models/net/ready")
    assert lost.name in told["error"]
    assert asked(asks, "/v2/health/ready")[0] == 503
    (row,) = asked(asks, "/v2/repository/index", "POST", b"")[1]
    assert row["state"] == "UNAVAILABLE"
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(X.shape), "data": X.ravel().tolist()}]}
    status, told = asked(asks, "/v2/models/net/infer", "POST", json.dumps(body).encode())
    assert status == 503
    assert f"{lost.name}, the only device that it may use, is gone" in told["error"]
    document = cluster.status(asks)
    assert [(gone["name"], gone["state"]) for gone in document["lost"]] == [(lost.name, "lost")]
    assert lost.name in document["deployments"][0]["trouble"]
    shown = typed(asks, "status").stdout
    assert f"{lost.name} " in shown and " ago" in shown and "net does not answer" in shown

    # It is known, though it is away; and what waits for it can be replaced.
    done = typed(asks, "deploy", str(model), "--name", "other", "--devices", lost.name)
    assert done.returncode == 1 and f"{lost.name} is not here now" in done.stderr
    deploy(cluster, model, "net", "--devices", leader.name, "--shape", "x=1,3,16,16")
    cluster.wait(lambda: asked(asks, "/v2/health/ready")[0] == 200, "the deployment to be ready again")
    assert not differences(infer(asks, "net", {"x": X}), expected)
    undeploy(cluster, "net")


@pytest.mark.parametrize("option", ["--listen", *nightly("--http")])
def test_an_address_in_use_ends_an_agent_alike(tmp_path: Path, option: str) -> None:
    agent = LocalAgent("z", tmp_path / "z")
    agent.type("init", "--name", "z")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        addresses = {"--listen": "127.0.0.1:0", "--http": "127.0.0.1:0", option: where}
        done = typed(agent, "agent", "--no-mdns", *(word for pair in addresses.items() for word in pair))
    assert done.returncode == 1
    assert "cannot listen" in done.stderr and where in done.stderr


def test_a_device_that_is_put_out_knows_and_stops(cluster: LocalCluster) -> None:
    out = next(agent for agent in cluster.living if agent is not cluster.first)
    assert out.process is not None
    cluster.first.type("revoke", out.name)
    assert out.process.wait(60) == 4
    assert "this device was revoked" in out.log.read_text()
    again = typed(out, "agent", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--no-mdns")
    assert again.returncode == 4
    assert "this device was revoked" in again.stderr


@pytest.mark.nightly
def test_a_device_that_was_off_when_it_was_put_out_learns_it_when_it_is_back(cluster: LocalCluster) -> None:
    out = cluster.add("pi-z")
    cluster.wait_for_members(len(cluster.living))
    out.kill()
    cluster.first.type("revoke", out.name)
    again = typed(out, "agent", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--no-mdns")
    assert again.returncode == 4
    assert "this device was revoked" in again.stderr
