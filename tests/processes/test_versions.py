"""Model versions on real agents: rolled over and back under load, and a cluster made what a file describes."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.cli.main import main
from edgepart.planner.errors import ClusterError
from tests.processes.tiny_language import tiny_language

pytestmark = pytest.mark.processes

FIRST, OTHER = [1, 4], [2, 4]
"""Shapes of requests: that of the deployment, and another one, which gets a plan of its own."""


def adding(path: Path, number: float) -> Path:
    """y = x + number for any number of rows, through a product that is worth nothing, so that there is a weight to send."""
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    plus = numpy_helper.from_array(np.full(4, number, np.float32), "b")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    graph = helper.make_graph(nodes, "adding", values[:1], values[1:], [weight, plus])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def failing(path: Path) -> Path:
    """y = x, but not for zeros, for which it looks up what is not there."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in "xy"]
    table = numpy_helper.from_array(np.zeros(2, np.float32), "table")
    far, near = (
        numpy_helper.from_array(np.array(n, np.int64), name) for n, name in ((7, "far"), (0, "near"))
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["some"], to=TensorProto.BOOL),
        helper.make_node("Where", ["some", "near", "far"], ["index"]),
        helper.make_node("Gather", ["table", "index"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "failing", values[:1], values[1:], [table, far, near])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@dataclass(frozen=True)
class Told:
    """An answer of one gateway."""

    asked_s: float
    """When the request was sent."""
    value: float
    """What the model added."""
    version: str


@dataclass
class Load:
    """Clients of every gateway that ask without a pause."""

    told: list[Told] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def versions(self, since_s: float, until_s: float) -> set[str]:
        """The versions that answered requests which were sent in that time, whichever gateway was asked."""
        return {one.version for one in self.told if since_s < one.asked_s < until_s}


def typed(*arguments: str) -> tuple[int, Any]:
    """The exit status and the document of a command, in this process, where it need not start Python."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    return int(ended.value.code or 0), json.loads(said.getvalue())


def ask(connection: http.client.HTTPConnection, shape: list[int], path: str = "/v2/models/sum/infer") -> Any:
    data = [0.0] * (shape[0] * shape[1])
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}]}
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def connect(agent: LocalAgent) -> http.client.HTTPConnection:
    parts = urlsplit(agent.url)
    return http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)


@contextmanager
def asked_by_many(agents: list[LocalAgent]) -> Iterator[Load]:
    """Two clients of each agent, one with requests of another shape than the deployment's."""
    load, over = Load(), threading.Event()

    def client(agent: LocalAgent, shape: list[int]) -> None:
        connection = connect(agent)
        while not over.is_set():
            asked_s = time.monotonic()
            status, answer = ask(connection, shape)
            if status != 200 or len(set(answer["outputs"][0]["data"])) != 1:
                load.wrong.append(f"{agent.name}: {status} {answer}")
                continue
            load.told.append(Told(asked_s, answer["outputs"][0]["data"][0], answer["model_version"]))
        connection.close()

    clients = [threading.Thread(target=client, args=(a, shape)) for a in agents for shape in (FIRST, OTHER)]
    for one in clients:
        one.start()
    try:
        yield load
    finally:
        over.set()
        for one in clients:
            one.join()


def test_no_request_is_lost_or_answered_by_the_wrong_version_while_versions_change(
    trio: LocalCluster, tmp_path: Path
) -> None:
    models = {str(n): adding(tmp_path / f"plus{n}.onnx", float(n)) for n in (1, 2)}
    agents, state = trio.living, ("--state", str(trio.living[-1].state))
    deploying = ("--name", "sum", "--shape", "x=1,4", *state)
    assert typed("deploy", str(models["1"]), *deploying)[1]["version"] == "1"
    for agent in agents:
        connection = connect(agent)
        assert ask(connection, OTHER)[0] == 200  # Its plan is made before the load comes.
        connection.close()
    with asked_by_many(agents) as load:
        settle(load)
        expected = change_versions(
            trio, load, [("deploy", str(models["2"]), *deploying), ("rollback", "sum", *state)]
        )
        connection = connect(agents[0])
        status, answer = ask(connection, FIRST, "/v2/models/sum/versions/2/infer")
        assert (status, answer["error"]) == (404, "'sum' serves version '1' only, not '2'")
        assert ask(connection, FIRST, "/v2/models/sum/versions/1/infer")[1]["model_version"] == "1"
        connection.close()
    assert load.wrong == []
    assert {(one.value, one.version) for one in load.told} == {(1.0, "1"), *expected}
    typed("undeploy", "sum", *state)


def test_a_candidate_answers_its_share_and_is_promoted_without_a_lost_request(
    trio: LocalCluster, tmp_path: Path
) -> None:
    """And what it cannot answer, the version that serves does."""
    models = {n: str(adding(tmp_path / f"plus{n}.onnx", float(n))) for n in (1, 2)}
    agents, state = trio.living, ("--state", str(trio.living[1].state))
    deploying = ("--name", "sum", "--shape", "x=1,4", *state)
    first = int(typed("deploy", models[1], *deploying)[1]["version"])
    serving, trial = str(first), str(first + 1)
    assert typed("deploy", models[2], "--share", "25", *deploying)[1]["version"] == trial
    for agent in agents:
        connection = connect(agent)
        for version in (serving, trial):  # Plans of the other shape are made before the load comes.
            assert ask(connection, OTHER, f"/v2/models/sum/versions/{version}/infer")[0] == 200
        connection.close()
    with asked_by_many(agents) as load:
        settle(load, 400)
        drawn, count = sum(one.version == trial for one in load.told), len(load.told)
        assert 0.25 - 6 * (0.1875 / count) ** 0.5 < drawn / count < 0.25 + 6 * (0.1875 / count) ** 0.5
        assert typed("share", "sum", "0", *state)[0] == 0
        others_told(agents, 0)
        begun_s = time.monotonic()
        settle(load)
        assert load.versions(begun_s, time.monotonic()) == {serving}
        assert typed("deploy", str(failing(tmp_path / "failing.onnx")), "--share", "50", *deploying)[0] == 0
        while not (card := typed("models", *state)[1]["models"][0]["candidate"])["fallbacks"]:
            settle(load)
        assert "Gather" in card["last_failure"]
        trial = typed("deploy", models[2], "--share", "60", *deploying)[1]["version"]
        before = members_gone(trio)
        assert typed("promote", "sum", *state)[1]["version"] == trial
        begun_s = time.monotonic()
        settle(load)
        assert load.versions(begun_s, time.monotonic()) == {trial} or members_gone(trio) > before
    assert load.wrong == []
    assert {(one.value, one.version) for one in load.told} == {
        (1.0, serving),
        (2.0, str(first + 1)),
        (2.0, trial),
    }
    (card,) = typed("models", *state)[1]["models"]
    assert (card["version"], card["kept_versions"], card["candidate"]) == (trial, [serving], None)
    typed("undeploy", "sum", *state)


def others_told(agents: list[LocalAgent], share: int) -> None:
    """Wait until every agent knows the share."""
    for agent in agents:
        while typed("models", "--state", str(agent.state))[1]["models"][0]["candidate"]["share"] != share:
            time.sleep(0.01)


def change_versions(
    cluster: LocalCluster, load: Load, commands: list[tuple[str, ...]]
) -> set[tuple[float, str]]:
    """Type the commands, a deploy and a rollback, and check that each has changed the version for all gateways when it
    returns. That is promised for members only: if one was lost meanwhile, as may happen on a busy machine, do it again.
    Returns the values and versions that may have been answered."""
    expected = set()
    for number in range(2, 7):
        expected.add((2.0, str(number)))
        before = members_gone(cluster)
        spans: list[tuple[float, float, str]] = []
        for command in commands:
            status, document = typed(*command)
            assert status == 0
            begun_s = time.monotonic()
            settle(load)
            spans.append((begun_s, time.monotonic(), document["version"]))
        assert [version for _, _, version in spans] == [str(number), "1"]
        answered = [load.versions(since_s, until_s) for since_s, until_s, _ in spans]
        if answered == [{version} for _, _, version in spans]:
            return expected
        assert members_gone(cluster) > before, f"answered by {answered}, and not by {number} and then 1"
    raise ClusterError("in five rounds the members never stayed together")


def members_gone(cluster: LocalCluster) -> int:
    """How often the agents have logged that a member is gone."""
    return sum(agent.log.read_text().count(" is gone\n") for agent in cluster.living)


def settle(load: Load, count: int = 60) -> None:
    """Wait until as many more answers have come."""
    until = len(load.told) + count
    while len(load.told) < until and not load.wrong:
        time.sleep(0.01)


def test_a_cluster_becomes_what_a_file_describes(trio: LocalCluster, tmp_path: Path) -> None:
    state = ("--state", str(trio.first.state))
    for number in (1, 2, 3):
        adding(tmp_path / f"plus{number}.onnx", float(number))
    tiny_language(tmp_path / "talk")
    described: dict[str, Any] = {
        "one": {"model": "plus1.onnx", "shape": {"x": [1, 4]}},
        "two": {"model": "plus2.onnx", "shape": {"x": [1, 4]}, "bindings": 2},
        "talk": {"model": "talk", "context": 64},
    }
    file = tmp_path / "cluster.yaml"

    def apply(*options: str, command: str = "apply") -> Any:
        file.write_text(json.dumps({"deployments": described}))
        status, found = typed(command, str(file), *options, *state)
        assert status == (5 if command == "diff" and found["changes"] else 0)
        return {one["name"]: one["change"] for one in found["changes"]}, found["unchanged"]

    def cards() -> dict[str, Any]:
        return {card["name"]: card for card in typed("models", *state)[1]["models"]}

    everything = dict.fromkeys(described, "deploy")
    assert apply("--dry-run") == (everything, [])
    assert cards() == {}
    assert apply() == (everything, [])
    before = cards()
    assert apply() == ({}, ["one", "two", "talk"])
    assert apply(command="diff") == ({}, ["one", "two", "talk"])
    (tmp_path / "exported.yaml").write_text(typed("export", *state)[1]["description"])
    assert typed("diff", str(tmp_path / "exported.yaml"), "--prune", *state)[1]["changes"] == []

    described["one"]["model"] = "plus3.onnx"
    del described["two"]
    assert apply(command="diff") == ({"one": "deploy"}, ["talk"])
    assert apply() == ({"one": "deploy"}, ["talk"])
    after = cards()
    assert after["one"]["version"] == "2" and after["one"]["kept_versions"] == ["1"]
    for name in ("two", "talk"):
        assert (after[name]["version"], after[name]["model_digest"]) == ("1", before[name]["model_digest"])

    described["one"]["model"] = "plus1.onnx"
    assert apply("--prune", "--yes") == ({"one": "roll back", "two": "undeploy"}, ["talk"])
    assert cards().keys() == {"one", "talk"}
    assert (cards()["one"]["version"], cards()["one"]["kept_versions"]) == ("1", ["2"])
    for name in ("one", "talk"):
        typed("undeploy", name, *state)
