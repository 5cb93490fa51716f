"""`edgepart deploy --batch` with a real agent: sixteen clients are answered as one session answers them, by fewer runs."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.cli.local import LocalCluster
from edgepart.client.async_client import AsyncClient
from edgepart.planner.errors import ClusterError
from tests.processes.asking import deploy, differences, run_alone, target, undeploy

pytestmark = pytest.mark.processes

CLIENTS, ROUNDS, ROWS = 16, 6, 8


def saved(path: Path, first: str | int, last: str = "Tanh", **attributes: Any) -> Path:
    """Four layers over rows of 256 values, whose first dimension is `first`, and then the operator `last`."""
    draw = np.random.default_rng(0)
    weights = [(draw.standard_normal((256, 256)) / 16).astype(np.float32) for _ in range(4)]
    names = ["x", "a", "b", "c", "d"]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(4)]
    graph = helper.make_graph(
        [*nodes, helper.make_node(last, ["d"], ["y"], **attributes)],
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [first, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [first, 256])],
        [onnx.numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(weights)],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def counts(cluster: LocalCluster) -> tuple[int, int]:
    """The rows and the runs so far."""
    with urllib.request.urlopen(f"{cluster.first.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = (
        re.search(rf'^{name}{{model="net",[^}}]*}} (\S+)$', text, re.MULTILINE)
        for name in ("nv_inference_count", "nv_inference_exec_count")
    )
    rows, runs = (int(float(one[1])) if one else 0 for one in found)
    return rows, runs


def test_sixteen_clients_share_runs_and_get_their_own_answers(trio: LocalCluster, tmp_path: Path) -> None:
    path = saved(tmp_path / "net.onnx", "n")
    deploy(trio, path, "net", "--batch", str(ROWS), "--batch-delay", "20ms")
    draw = np.random.default_rng(1)
    inputs = [{"x": draw.standard_normal((1 + n % 2, 256)).astype(np.float32)} for n in range(CLIENTS)]
    expected = [run_alone(path, one) for one in inputs]

    async def rounds(client: AsyncClient) -> None:
        async def ask(number: int) -> None:
            for _ in range(ROUNDS):
                answer = await client.infer("net", inputs[number])
                assert not differences(answer.outputs, expected[number])

        await asyncio.gather(*map(ask, range(CLIENTS)))

    async def story() -> None:
        async with AsyncClient(target(trio.first)) as client:
            # The plan for eight rows is wanted by the first requests, which do not wait for it.
            for _ in range(200):
                before = counts(trio)
                await rounds(client)
                rows, runs = (after - then for after, then in zip(counts(trio), before, strict=True))
                assert rows == ROUNDS * sum(len(one["x"]) for one in inputs)
                if runs < ROUNDS * CLIENTS / 2:
                    return
        raise AssertionError("requests are never run together")

    asyncio.run(story())
    (card,) = (card for card in asyncio.run(cards(trio)) if card["name"] == "net")
    assert not card["note"]
    assert {"x": [ROWS, 256]} in [
        bound["shapes"] for bound in card["bindings"] if bound["state"] == "serving"
    ]
    undeploy(trio, "net")


async def cards(cluster: LocalCluster) -> list[dict[str, Any]]:
    async with AsyncClient(target(cluster.first)) as client:
        return await client.models()


def test_a_model_without_a_free_first_dimension_is_refused(trio: LocalCluster, tmp_path: Path) -> None:
    path = saved(tmp_path / "fixed.onnx", 1)
    with pytest.raises(ClusterError, match="first dimension of 'x', 'y' is fixed"):
        deploy(trio, path, "fixed", "--batch", "8")


def test_a_model_whose_rows_depend_on_each_other_runs_singly(trio: LocalCluster, tmp_path: Path) -> None:
    path = saved(tmp_path / "mixed.onnx", "n", "Softmax", axis=0)
    deploy(trio, path, "mixed", "--batch", str(ROWS), "--batch-delay", "20ms")
    draw = np.random.default_rng(2)
    inputs = [{"x": draw.standard_normal((1, 256)).astype(np.float32)} for _ in range(4)]
    expected = [run_alone(path, one) for one in inputs]

    async def story() -> str:
        async with AsyncClient(target(trio.first)) as client:
            for _ in range(1000):
                answers = await asyncio.gather(*(client.infer("mixed", one) for one in inputs))
                for answer, right in zip(answers, expected, strict=True):
                    assert not differences(answer.outputs, right)
                (card,) = (card for card in await client.models() if card["name"] == "mixed")
                if card["note"]:
                    return str(card["note"])
        raise AssertionError("nobody noticed")

    assert "answers of a batch differ from those of single requests" in asyncio.run(story())
    command = [sys.executable, "-m", "edgepart", "models", "--state", str(trio.first.state)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert "note: requests are not batched: the answers of a batch differ" in said
    undeploy(trio, "mixed")
