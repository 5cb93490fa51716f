"""What one model or one request does to ONNX Runtime, it does to nobody else: real agents, a model that divides integers,
one that never ends, one that crashes while it is loaded, one that takes too much memory, and another that has to be
served through all that."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from benchmarks.models import light, sample_inputs
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from edgepart.cli.local import LocalAgent, LocalCluster, edgepart
from edgepart.planner.errors import ClusterError
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, requests_during, run_alone, undeploy, workers

pytestmark = pytest.mark.processes

LOWEST = int(np.iinfo(np.int64).min)
OPTIONS = ("--threads", "1", "--memory-limit", "1G")
PAUSE_S = 0.05
"""Between the questions to a bystander: three that ask as fast as they can take both cores of a small machine."""
Ports = list[tuple[str, int, list[int]]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(["a", "b", "c"], options=OPTIONS, folder=folder) as found:
        deploy(found, bystander(folder), "bystander")
        yield found


def graph(
    nodes: list[NodeProto], takes: Ports, gives: Ports, constants: dict[str, Any] | None = None
) -> GraphProto:
    def infos(ports: Ports) -> list[Any]:
        return [helper.make_tensor_value_info(*port) for port in ports]

    made = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    return helper.make_graph(nodes, "g", infos(takes), infos(gives), made)


def saved(folder: Path, name: str, made: GraphProto) -> Path:
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


INTEGERS: Ports = [("x", TensorProto.INT64, [2])]
RESULT: Ports = [("y", TensorProto.INT64, [2])]


def bystander(folder: Path) -> Path:
    node = helper.make_node("Relu", ["x"], ["y"])
    port = TensorProto.FLOAT, [1, 16]
    return saved(folder, "bystander", graph([node], [("x", *port)], [("y", *port)]))


def dividing(folder: Path) -> Path:
    node = helper.make_node("Div", ["x", "by"], ["y"])
    return saved(folder, "dividing", graph([node], [*INTEGERS, ("by", *INTEGERS[0][1:])], RESULT))


def looping(folder: Path) -> Path:
    body = graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "one"], ["w"])],
        [("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("v", TensorProto.INT64, [2])],
        [("on", TensorProto.BOOL, []), ("w", TensorProto.INT64, [2])],
        {"one": np.ones(2, np.int64)},
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    return saved(folder, "looping", graph([node], [("n", TensorProto.INT64, []), *INTEGERS], RESULT))


def crashing_at_load(folder: Path) -> Path:
    """ONNX Runtime computes the constants of a branch while it loads it."""
    nodes = [helper.make_node("Div", ["low", "minus"], ["q"]), helper.make_node("Add", ["x", "q"], ["t"])]
    then = graph(nodes, [], [("t", TensorProto.INT64, [2])], {"low": [LOWEST] * 2, "minus": [-1] * 2})
    other = graph([helper.make_node("Identity", ["x"], ["e"])], [], [("e", TensorProto.INT64, [2])])
    node = helper.make_node("If", ["which"], ["y"], then_branch=then, else_branch=other)
    return saved(folder, "crashing", graph([node], [*INTEGERS, ("which", TensorProto.BOOL, [])], RESULT))


def growing(folder: Path) -> Path:
    """A gibibyte and more for what is in between, however the input is."""
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["wide"]),
        helper.make_node("Neg", ["wide"], ["low"]),
        helper.make_node("Sub", ["wide", "low"], ["both"]),
        helper.make_node("ReduceSum", ["both", "axis"], ["y"], keepdims=1),
    ]
    ports: tuple[Ports, Ports] = (
        [("x", TensorProto.FLOAT, [1]), ("n", TensorProto.INT64, [1])],
        [("y", TensorProto.FLOAT, [1])],
    )
    return saved(folder, "growing", graph(nodes, *ports, {"axis": [0]}))


def ask(agent: LocalAgent, name: str, timeout_s: float = 60.0, **inputs: tuple[str, Any]) -> tuple[int, Any]:
    """Status and document, as any HTTP client without a credential gets them."""
    body = {
        "inputs": [
            {"name": key, "datatype": kind, "shape": list(np.shape(value)), "data": np.ravel(value).tolist()}
            for key, (kind, value) in inputs.items()
        ],
        "parameters": {"timeout": int(timeout_s * 1e6)},
    }
    url = f"{agent.url}/v2/models/{name}/infer"
    question = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(question, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def divided(agent: LocalAgent, x: int, by: int) -> tuple[int, Any]:
    return ask(agent, "dividing", x=("INT64", [x, x]), by=("INT64", [by, by]))


@contextmanager
def untouched(cluster: LocalCluster) -> Iterator[None]:
    """Another deployment is asked meanwhile, through every agent, and every answer is right; the agents stay who they
    are."""
    before = [(agent.name, agent.process.pid if agent.process else 0) for agent in cluster.living]
    leader = cluster.status()["leader"]
    done = threading.Event()
    faults: list[Any] = []
    answered: list[str] = []
    expected = [float(n) for n in range(16)]

    def keep_asking(agent: LocalAgent) -> None:
        while not done.is_set() or not answered:
            status, document = ask(agent, "bystander", x=("FP32", [list(range(16))]))
            answered.append(agent.name)
            if status != 200 or document["outputs"][0]["data"] != expected:
                faults.append((agent.name, status, document))
                return
            done.wait(PAUSE_S)

    threads = [threading.Thread(target=keep_asking, args=[agent]) for agent in cluster.living]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not faults and answered
    after = [
        (agent.name, agent.process.pid if agent.process else 0) for agent in cluster.living if agent.alive
    ]
    assert after == before and cluster.status()["leader"] == leader


def card(agent: LocalAgent, name: str) -> dict[str, Any]:
    document = edgepart("models", "--state", str(agent.state))
    (found,) = [one for one in document["models"] if one["name"] == name]
    return dict(found)


@pytest.mark.nightly
def test_a_query_of_death_ends_nothing_but_itself(cluster: LocalCluster, tmp_path: Path) -> None:
    deploy(cluster, dividing(tmp_path), "dividing")
    first, *_, last = cluster.living
    with untouched(cluster):
        status, document = divided(last, LOWEST, -1)
        assert status == 500 and document["kind"] == "CrashError" and "SIGFPE" in document["error"]
        status, document = divided(first, 9, 2)
        assert status == 200 and document["outputs"][0]["data"] == [4, 4]
        status, document = divided(last, 5, 0)
        assert status == 500 and document["kind"] == "RunError" and "zero" in document["error"]
        status, document = divided(last, LOWEST, -1)
        assert status == 500 and document["kind"] == "CrashError"
        # A model that ends workers again and again is set aside, everywhere, until a user says otherwise.
        status, document = divided(first, 9, 2)
        assert status == 500 and "set aside" in document["error"]
    for agent in cluster.living:
        assert "crashes ONNX Runtime" in card(agent, "dividing")["state"]
        with urllib.request.urlopen(f"{agent.url}/metrics") as metrics:
            assert 'edgepart_deployment_set_aside{model="dividing"} 1.0' in metrics.read().decode()
    assert "set aside" in json.dumps(edgepart("doctor", "--state", str(first.state)))
    deploy(cluster, dividing(tmp_path), "dividing")
    assert divided(last, 9, 2)[0] == 200
    undeploy(cluster, "dividing")


@pytest.mark.nightly
def test_a_model_that_crashes_while_it_is_loaded_is_set_aside_also_after_a_restart(tmp_path: Path) -> None:
    with LocalCluster(["a", "b"], options=OPTIONS, folder=tmp_path) as cluster:
        deploy(cluster, bystander(tmp_path), "bystander")
        with untouched(cluster), pytest.raises(ClusterError, match="crashes ONNX Runtime while it is loaded"):
            deploy(cluster, crashing_at_load(tmp_path), "crashing")
        for agent in cluster.living:
            agent.kill()
        for agent in list(cluster.agents.values()):
            agent.start()
        cluster.wait_for_members(2)
        for agent in cluster.living:
            while ask(agent, "bystander", x=("FP32", [list(range(16))]))[0] == 503:
                continue  # its plan is made anew
        with untouched(cluster):
            for agent in cluster.living:
                assert "while it is loaded" in card(agent, "crashing")["state"]
        assert not any(
            "SIGFPE" in agent.log.read_text().rpartition(" listens on ")[2] for agent in cluster.living
        )


def test_a_request_that_never_ends_ends_at_its_deadline_and_holds_up_nobody(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    deploy(cluster, looping(tmp_path), "looping")
    agent = cluster.living[0]
    with untouched(cluster):
        status, document = ask(agent, "looping", 5.0, n=("INT64", np.array(2**62)), x=("INT64", [0, 0]))
        assert status == 504 and "deadline" in document["error"]
        status, document = ask(agent, "looping", n=("INT64", np.array(7)), x=("INT64", [0, 1]))
        assert status == 200 and document["outputs"][0]["data"] == [7, 8]
    # Also where it is undeployed meanwhile: nothing goes on computing it.
    endless = threading.Thread(
        target=ask, args=[agent, "looping"], kwargs={"n": ("INT64", np.array(2**62)), "x": ("INT64", [0, 0])}
    )
    endless.start()
    with untouched(cluster):
        undeploy(cluster, "looping")
        endless.join()
    busy = [one for each in cluster.living for one in workers(each) if "looping" in one.cmdline()]
    psutil.wait_procs(busy)


def test_over_the_memory_limit_a_request_fails_with_the_reason(cluster: LocalCluster, tmp_path: Path) -> None:
    deploy(cluster, growing(tmp_path), "growing")
    agent = cluster.living[0]
    with untouched(cluster):
        status, document = ask(agent, "growing", x=("FP32", [1.0]), n=("INT64", [1 << 28]))
        assert status == 500 and "memory" in document["error"], document
        status, document = ask(agent, "growing", x=("FP32", [1.0]), n=("INT64", [4]))
        assert status == 200 and document["outputs"][0]["data"] == [8.0]
    undeploy(cluster, "growing")


def test_workers_that_are_killed_under_load_cost_no_request(cluster: LocalCluster) -> None:
    path = light("squeezenet")
    inputs = sample_inputs(load_graph(path))
    expected = run_alone(path, inputs)
    deploy(cluster, path, "squeezenet", "--strategy", "bbgrap")
    killed = []

    def kill_all() -> None:
        for agent in cluster.living:
            for worker in workers(agent):
                if "squeezenet" in worker.cmdline():
                    os.kill(worker.pid, signal.SIGKILL)
                    killed.append(worker.pid)

    with untouched(cluster):
        tally = requests_during(cluster.living[0], "squeezenet", inputs, expected, 40, kill_all)
    assert (tally.sent, tally.answered, tally.lost, tally.wrong) == (40, 40, [], 0) and len(killed) > 1
    logs = "".join(agent.log.read_text() for agent in cluster.living)
    assert len(re.findall("worker of squeezenet ended with SIGKILL", logs)) == len(killed)
    undeploy(cluster, "squeezenet")
