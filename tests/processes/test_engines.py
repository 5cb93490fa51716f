"""Engines beside the CPU: real agents with an engine that is made up, and whose faults are real. Each fault is survived and
named, and the model is served with right answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.agent.engines.verdicts import limited
from edgepart.cli.emulation import sitecustomize as slow
from edgepart.cli.local import LocalCluster
from edgepart.planner.model.load import load_graph
from tests.lab_engine import LAB, lab_environment
from tests.processes.asking import deploy, differences, infer, run_alone

pytestmark = pytest.mark.processes

CPU_SLOWER = 8.0
FASTER = "conv=2,other=2"
"""The speed of the engine, in the same unit: a quarter of the time."""
FAULTY = "Relu"
"""An operator of the model, and of no trial with which engines are checked at the start."""


def cluster_of(folder: Path, faults: str, *options: str) -> LocalCluster:
    env = lab_environment(f"{LAB},{FASTER}{faults}") | {slow.VARIABLE: str(CPU_SLOWER)}
    env["EDGEPART_MEASURED"] = (
        os.environ["EDGEPART_MEASURED"] + ".slow"
    )  # Not the machine that other tests measured.
    options = ("--threads", "1", "--no-mdns", "--providers", LAB, *options)
    return LocalCluster(["a"], options=options, env={"a": env}, folder=folder, listen="127.0.0.1:0")


def verdicts(cluster: LocalCluster) -> list[dict[str, Any]]:
    file = cluster.first.state / "verdicts.json"
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return found


def refusals(cluster: LocalCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.first.type("devices").get("engines_refused", {}).get("a", [])
    return found


def is_named(cluster: LocalCluster, outcome: str) -> Callable[[], bool]:
    """Whether devices, doctor and the deployment's note all say how the engine failed."""

    def named() -> bool:
        checks = [one["text"] for one in cluster.first.type("doctor")["checks"] if one["name"] == "engines"]
        (card,) = cluster.status()["deployments"]
        places = [f"{one['engine']} {one['outcome']}" for one in refusals(cluster)], checks, [card["note"]]
        return all(any(LAB in text and outcome in text for text in place) for place in places)

    return named


def predicted_s(cluster: LocalCluster) -> float:
    (card,) = cluster.status()["deployments"]
    return float(card["predicted_latency_s"])


@pytest.fixture(scope="module")
def model() -> Path:
    return light("squeezenet")


class Asked:
    """A model, and the answer that one session gives."""

    def __init__(self, model: Path) -> None:
        self.inputs = sample_inputs(load_graph(model))
        self.expected = run_alone(model, self.inputs)

    def right(self, cluster: LocalCluster, times: int = 3) -> bool:
        return not any(
            differences(infer(cluster.first, "net", self.inputs), self.expected) for _ in range(times)
        )


def test_a_faster_engine_computes_and_its_answers_are_right(tmp_path: Path, model: Path) -> None:
    asked = Asked(model)
    with cluster_of(tmp_path, "") as cluster:
        deploy(cluster, model, "net")
        assert asked.right(cluster)
        (found,) = verdicts(cluster)
        assert (found["engine"], found["outcome"]) == (LAB, "is admitted")
        assert refusals(cluster) == []
        document = cluster.first.type("devices")
        (device,) = document["devices"]
        assert [one["name"] for one in device["engines"]] == [LAB]
        (drift,) = document["engine_drifts"][device["name"]]
        measured = found["engine_s"] / (found["cpu_s"] * found["times_cpu"])
        assert drift == {"engine": LAB, "model": found["model"], "drift": pytest.approx(limited(measured))}


@pytest.mark.parametrize(
    "fault", ["crashes", "lies", "fails", pytest.param("hangs", marks=pytest.mark.nightly)]
)
def test_an_engine_that_fails_its_trial_is_named_and_the_model_is_served(
    tmp_path: Path, model: Path, fault: str
) -> None:
    asked = Asked(model)
    with cluster_of(tmp_path, f",{fault}={FAULTY}") as cluster:
        deploy(cluster, model, "net")
        assert asked.right(cluster)
        cluster.wait(is_named(cluster, fault), "the fault to be named")
        tried = [one["segment"] for one in verdicts(cluster)]
        assert len(tried) == len(set(tried))
        cluster.first.stop()
        cluster.first.start()
        cluster.wait(
            lambda: cluster.first.addresses and asked.right(cluster), "right answers after a restart"
        )
        cluster.wait(is_named(cluster, fault), "the fault to be named after a restart")


def test_an_engine_that_lacks_an_operator_leaves_it_to_the_cpu_and_it_is_said(
    tmp_path: Path, model: Path
) -> None:
    asked = Asked(model)
    with cluster_of(tmp_path, f",lacks={FAULTY}") as cluster:
        deploy(cluster, model, "net")
        assert asked.right(cluster)
        cluster.wait(is_named(cluster, "fails"), "the fault to be named")
        assert "LabExecutionProvider does not take Relu" in refusals(cluster)[0]["why"]


@pytest.mark.parametrize("fault", ["crashes", "fails"])
def test_an_engine_that_fails_while_it_serves_loses_no_request(
    tmp_path: Path, model: Path, fault: str
) -> None:
    asked = Asked(model)
    file = tmp_path / "now"
    with cluster_of(tmp_path, f",{fault}={FAULTY}@{file}") as cluster:
        deploy(cluster, model, "net")
        assert asked.right(cluster)
        fast_s = predicted_s(cluster)
        file.touch()
        assert asked.right(cluster)
        cluster.wait(is_named(cluster, fault), "the fault to be named")
        cluster.wait(lambda: predicted_s(cluster) > 2 * fast_s, "a plan without the engine")
        assert asked.right(cluster)
        (card,) = cluster.status()["deployments"]
        assert not card["set_aside"]


def test_a_provider_that_is_asked_for_and_missing_ends_the_start(tmp_path: Path) -> None:
    with LocalCluster(["a"], options=("--threads", "1", "--no-mdns"), folder=tmp_path) as cluster:
        agent = cluster.first
        agent.stop()
        agent.options = (*agent.options, "--providers", "cuda")
        agent.start()
        assert agent.process is not None and agent.process.wait(60) == 2
        assert "edgepart[gpu]" in agent.log.read_text()
