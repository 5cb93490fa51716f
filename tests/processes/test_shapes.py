"""Requests of any shape that a model takes: real agents, one of them killed in the middle, and clients that ask for what
cannot be.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.comparing import Values
from onnx import TensorProto, helper

from edgepart.agent.serving.shape_routing import MAX_WAITING
from edgepart.cli.local import LocalAgent, LocalCluster, edgepart
from edgepart.client.async_client import AsyncClient
from edgepart.planner.errors import EdgepartError
from tests.processes.asking import deploy, differences, infer, run_alone, target, undeploy

pytestmark = pytest.mark.processes

REQUESTS = 120


def saved(path: Path, nodes: list[onnx.NodeProto], shapes: dict[str, Any], constants: dict[str, Any]) -> Path:
    """A model of float inputs (all but the last of `shapes`) and one output."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    known = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", values[:-1], values[-1:], known)
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def blurring(path: Path) -> Path:
    """Four convolutions over pictures of any size, any number of them at once."""
    draw = np.random.default_rng(0)
    weights = {
        f"w{n}": (draw.standard_normal((8, 3 if n == 0 else 8, 3, 3)) / 9).astype(np.float32)
        for n in range(4)
    }
    names = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("Conv", [before, f"w{n}"], [after], pads=[1, 1, 1, 1])
        for n, (before, after) in enumerate(itertools.pairwise(names))
    ]
    return saved(path, nodes, {"x": ["n", 3, "h", "w"], "y": ["n", 8, "h", "w"]}, weights)


def pairing(path: Path) -> Path:
    """The rows of two inputs of one length, in the shape of [2, 6]: only two rows fit."""
    nodes = [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Reshape", ["c", "to"], ["y"])]
    shapes = {"a": ["rows", 6], "b": ["rows", 6], "y": [2, 6]}
    return saved(path, nodes, shapes, {"to": np.array([2, 6], np.int64)})


def picture(*shape: int) -> Values:
    return {"x": np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)}


def zeros(a: Sequence[int], b: Sequence[int]) -> Values:
    return {"a": np.zeros(a, np.float32), "b": np.zeros(b, np.float32)}


def fetch(agent: LocalAgent, path: str) -> Any:
    with urllib.request.urlopen(agent.url + path, timeout=30) as reply:
        return json.loads(reply.read())


def status_of(agent: LocalAgent, model: str, inputs: Values) -> tuple[int, str]:
    """Of a request in JSON: status and error."""
    entries = [
        {"name": n, "datatype": "FP32", "shape": list(v.shape), "data": v.ravel().tolist()}
        for n, v in inputs.items()
    ]
    body = json.dumps({"inputs": entries}).encode()
    try:
        with urllib.request.urlopen(f"{agent.url}/v2/models/{model}/infer", body, timeout=60) as reply:
            return reply.status, ""
    except urllib.error.HTTPError as error:
        return error.code, str(json.loads(error.read())["error"])


@pytest.mark.nightly
def test_pictures_of_every_size_while_an_agent_is_killed(victims: LocalCluster, tmp_path: Path) -> None:
    path = blurring(tmp_path / "blur.onnx")
    shapes = [(1, 3, 24, 24), (1, 3, 33, 17), (2, 3, 24, 24), (3, 3, 8, 40), (1, 3, 24, 25)]
    cases = [(inputs, run_alone(path, inputs)) for inputs in (picture(*shape) for shape in shapes)]
    deploy(victims, path, "blur", "--strategy", "bbgrap", "--shape", "x=1,3,24,24")
    leads = victims.agents[victims.status()["leader"]]
    asked, killed = next(agent for agent in victims.living if agent is not leads), leads

    async def run() -> list[str]:
        wrong: list[str] = []
        async with AsyncClient(target(asked)) as client:
            await client.learn()
            left = iter(range(REQUESTS))

            async def worker() -> None:
                for number in left:
                    if number == REQUESTS // 3:
                        await asyncio.to_thread(killed.kill)
                    inputs, expected = cases[number % len(cases)]
                    try:
                        answer = await client.infer("blur", inputs, None, 60)
                    except EdgepartError as error:
                        wrong.append(f"request {number} is lost: {error}")
                    else:
                        wrong.extend(map(str, differences(answer.outputs, expected)))

            await asyncio.gather(*(worker() for _ in range(5)))
        return wrong

    assert asyncio.run(run()) == []
    assert not killed.alive

    def bound() -> dict[tuple[int, ...], Any]:
        return {tuple(b["shapes"]["x"]): b for b in victims_card(asked, "blur")["bindings"]}

    assert set(bound()) == set(shapes)
    # Each is on one device first, and then split as its shape allows.
    victims.wait(
        lambda: all(len(b["devices"]) == 2 for b in bound().values()), "every shape to be split", asked
    )
    assert fetch(asked, "/v2/models/blur")["inputs"][0]["shape"] == [-1, 3, -1, -1]
    assert fetch(asked, "/v2/models/blur")["outputs"][0]["shape"] == [-1, 8, -1, -1]
    assert [model["name"] for model in fetch(asked, "/v2/models")] == ["blur"]


def victims_card(agent: LocalAgent, name: str) -> Any:
    return next(card for card in fetch(agent, "/api/models")["models"] if card["name"] == name)


def test_what_does_not_fit_is_said_at_once_and_disturbs_nobody(trio: LocalCluster, tmp_path: Path) -> None:
    path = pairing(tmp_path / "pairs.onnx")
    deploy(trio, path, "pairs", "--shape", "a=2,6")
    good = zeros((2, 6), (2, 6))
    for agent in trio.living:
        status, error = status_of(agent, "pairs", zeros((2, 6), (3, 6)))
        assert status == 400 and "dimension 'rows' is 2 in input 'a' and 3 in input 'b'" in error
        status, error = status_of(agent, "pairs", zeros((2, 7), (2, 7)))
        assert status == 400 and "[2, 7]" in error
        status, error = status_of(agent, "pairs", zeros((2, 6), (12,)))
        assert status == 400 and "[12]" in error
        for _ in range(2):
            status, error = status_of(agent, "pairs", zeros((3, 6), (3, 6)))
            assert status == 400 and "Reshape" in error and "18 elements" in error
        assert not differences(infer(agent, "pairs", good), run_alone(path, good))
    assert len(victims_card(trio.first, "pairs")["bindings"]) == 1
    undeploy(trio, "pairs")


@pytest.mark.nightly
def test_more_shapes_than_there_are_places(trio: LocalCluster, tmp_path: Path) -> None:
    path = blurring(tmp_path / "blur.onnx")
    deploy(trio, path, "many", "--strategy", "single", "--shape", "x=1,3,8,8", "--bindings", "2")
    inputs = [picture(1, 3, 8, 9 + n) for n in range(MAX_WAITING + 3)]

    async def run() -> list[Any]:
        async with AsyncClient(target(trio.first)) as client:
            asking = (client.infer("many", one, None, 120) for one in inputs)
            return await asyncio.gather(*asking)

    for one, answer in zip(inputs, asyncio.run(run()), strict=True):  # the client asks again where it must
        assert not differences(answer.outputs, run_alone(path, one))
    assert len(victims_card(trio.first, "many")["bindings"]) <= 3
    shown = edgepart("models", "--state", str(trio.first.state))["models"]
    assert [card["name"] for card in shown] == ["many"]
    undeploy(trio, "many")


def test_only_the_first_shapes_where_that_is_asked_for(trio: LocalCluster, tmp_path: Path) -> None:
    deploy(trio, blurring(tmp_path / "blur.onnx"), "first", "--shape", "x=1,3,8,8", "--bindings", "0")
    assert status_of(trio.first, "first", picture(1, 3, 8, 8))[0] == 200
    status, error = status_of(trio.first, "first", picture(1, 3, 8, 9))
    assert status == 400 and "x=1,3,8,8 only" in error
    undeploy(trio, "first")
