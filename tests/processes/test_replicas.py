"""Whole copies of a model on several agents: they share what clients ask, and one that dies takes nothing with it."""

from __future__ import annotations

import json
import urllib.request

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalCluster
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, requests_during, run_alone, served

pytestmark = pytest.mark.processes

PATH = light("squeezenet")
INPUTS = sample_inputs(load_graph(PATH))
REQUESTS = 120


@pytest.mark.nightly
def test_replicas_share_the_requests_and_survive_each_other(victims: LocalCluster) -> None:
    expected = run_alone(PATH, INPUTS)
    deployed = deploy(victims, PATH, "squeezenet", "--objective", "throughput", "--strategy", "replicas")
    with urllib.request.urlopen(f"{victims.first.url}/api/models/squeezenet/plan", timeout=10) as answer:
        plan = json.load(answer)
    assert len(plan["replicas"]) >= 2 and "copies of the model" in deployed["why"]
    leads = victims.agents[victims.status()["leader"]]
    asked, killed = (agent for agent in victims.living if agent is not leads)

    tally = requests_during(asked, "squeezenet", INPUTS, expected, REQUESTS, lambda: None, concurrency=8)
    assert (tally.answered, tally.lost, tally.wrong) == (REQUESTS, [], 0)
    assert sum(served(agent) > 0 for agent in victims.living) >= 2

    tally = requests_during(asked, "squeezenet", INPUTS, expected, REQUESTS, killed.kill, concurrency=8)
    assert (tally.sent, tally.answered, tally.lost, tally.wrong) == (REQUESTS, REQUESTS, [], 0)
    victims.wait_for_members(2)
