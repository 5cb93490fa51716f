"""`edgepart deploy --batch` with a real agent: sixteen clients are answered as one session answers them, by fewer runs."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.cli.local import LocalCluster
from edgepart.client.async_client import AsyncClient
from edgepart.planner.errors import ClusterError
from tests.processes.asking import deploy, differences, run_alone, target

pytestmark = pytest.mark.processes

CLIENTS, ROUNDS, ROWS = 16, 6, 8


def saved(path: Path, first: str | int) -> Path:
    """Four layers over rows of 256 values, whose first dimension is `first`."""
    draw = np.random.default_rng(0)
    weights = [(draw.standard_normal((256, 256)) / 16).astype(np.float32) for _ in range(4)]
    names = ["x", "a", "b", "c", "d"]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(4)]
    graph = helper.make_graph(
        [*nodes, helper.make_node("Tanh", ["d"], ["y"])],
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [first, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [first, 256])],
        [onnx.numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(weights)],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = ("--threads", "1", "--no-mdns")
    with LocalCluster(["a"], options=options, folder=tmp_path_factory.mktemp("alone")) as cluster:
        yield cluster


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


def test_sixteen_clients_share_runs_and_get_their_own_answers(alone: LocalCluster, tmp_path: Path) -> None:
    path = saved(tmp_path / "net.onnx", "n")
    deploy(alone, path, "net", "--batch", str(ROWS), "--batch-delay", "20ms")
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
        async with AsyncClient(target(alone.first)) as client:
            # The plan for eight rows is wanted by the first requests, which do not wait for it.
            for _ in range(200):
                before = counts(alone)
                await rounds(client)
                rows, runs = (after - then for after, then in zip(counts(alone), before, strict=True))
                assert rows == ROUNDS * sum(len(one["x"]) for one in inputs)
                if runs < ROUNDS * CLIENTS / 2:
                    return
        raise AssertionError("requests are never run together")

    asyncio.run(story())
    (card,) = (card for card in asyncio.run(cards(alone)) if card["name"] == "net")
    assert not card["note"]
    assert {"x": [ROWS, 256]} in [
        bound["shapes"] for bound in card["bindings"] if bound["state"] == "serving"
    ]


async def cards(cluster: LocalCluster) -> list[dict[str, object]]:
    async with AsyncClient(target(cluster.first)) as client:
        return await client.models()


def test_a_model_without_a_free_first_dimension_is_refused(alone: LocalCluster, tmp_path: Path) -> None:
    path = saved(tmp_path / "fixed.onnx", 1)
    with pytest.raises(ClusterError, match="first dimension of 'x', 'y' is fixed"):
        deploy(alone, path, "fixed", "--batch", "8")
