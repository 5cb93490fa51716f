"""Any plan returns what one session over the whole model returns: real agents, real models, every strategy."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest
from benchmarks.models import light, real_models, sample_inputs

from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.model.load import load_graph
from tests.agent.gateway.exposition import broken_rules
from tests.nightly import nightly
from tests.processes.asking import deploy, differences, infer, run_alone, undeploy

pytestmark = pytest.mark.processes

WAYS = [
    ("single",),
    ("bbgrap",),
    ("auto",),
    *nightly(
        ("bbgrap", "--axis", "channel"),
        ("modnn",),
        ("deepthings",),
        ("bbgrap", "--axis", "height"),
        ("bbgrap", "--axis", "width"),
    ),
]
"""The rest of the nine light models, and the real ones under every strategy: `make answers`."""


def check_metrics(cluster: LocalCluster, agent: LocalAgent, devices: set[str]) -> None:
    """What Prometheus gets from an agent that serves: its rules hold, and what it exchanged with the plan's other
    devices is counted. Two agents that the plan gives nothing to tell each other may have no link."""
    with urllib.request.urlopen(f"{agent.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert not list(broken_rules(text, ["squeezenet"], [one.name for one in cluster.living]))
    for name in ("sent", "received"):
        links = rf'^edgepart_link_{name}_bytes_total\{{peer="(.*)"\}} (\S+)$'
        counts = {peer: float(count) for peer, count in re.findall(links, text, re.MULTILINE)}
        assert counts.keys() <= {one.name for one in cluster.living} - {agent.name}
        told = [counts.get(peer, 0) for peer in devices - {agent.name}]
        assert not told or max(told) > 1000
    assert "# TYPE nv_inference_count counter" in text


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_squeezenet_under_every_strategy_on_three_agents(trio: LocalCluster, way: tuple[str, ...]) -> None:
    path = light("squeezenet")
    inputs = sample_inputs(load_graph(path))
    plan = deploy(trio, path, "squeezenet", "--strategy", *way)
    for agent in trio.living:
        assert not differences(infer(agent, "squeezenet", inputs), run_alone(path, inputs))
        check_metrics(trio, agent, set(plan["devices"]))
    assert plan["strategy"] == way[0]
    if way != ("auto",):  # which takes as many as help, and one where splitting would lose
        assert (len(plan["devices"]) == 1) == (way == ("single",))  # a box that is busy may get no part
    undeploy(trio, "squeezenet")


@pytest.mark.parametrize("number", [0, *nightly(*range(1, len(real_models())))])
def test_a_trained_model_from_a_package(trio: LocalCluster, number: int) -> None:
    model = real_models()[number]
    inputs = model.inputs(0)
    shapes = [f"--shape={name}={','.join(map(str, shape))}" for name, shape in model.shapes.items()]
    deploy(trio, Path(model.path), model.name, *shapes)
    assert not differences(infer(trio.first, model.name, inputs), run_alone(Path(model.path), inputs))
    undeploy(trio, model.name)
