"""Data goes around a slow link from agent to agent: the same answers, and one that passes on may die."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.model.load import load_graph
from edgepart.planner.search.choose_detours import WHY
from tests.processes.asking import deploy, differences, infer, requests_during, run_alone

pytestmark = pytest.mark.processes

PATH = light("squeezenet")
INPUTS = sample_inputs(load_graph(PATH))
NAMES = ("a", "b", "c")
REQUESTS = 60


def detouring() -> dict[str, str]:
    paths = [str(Path(__file__).parent / "detouring"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "EDGEPART_TEST_DETOURS": "1"}


def plan_of(agent: LocalAgent) -> Any:
    with urllib.request.urlopen(f"{agent.url}/api/models/squeezenet/plan", timeout=10) as answer:
        return json.load(answer)


@pytest.mark.nightly
def test_detours_answer_the_same_and_one_may_die(tmp_path: Path) -> None:
    expected = run_alone(PATH, INPUTS)
    environments = dict.fromkeys(NAMES, detouring())
    with LocalCluster(NAMES, options=("--threads", "1"), env=environments, folder=tmp_path) as cluster:
        made = deploy(cluster, PATH, "squeezenet", "--strategy", "bbgrap", "--axis", "channel")
        assert WHY in made["why"]
        devices = plan_of(cluster.first)["devices"]
        none, one, two = sorted(device["from_gateway_bytes"] for device in devices.values())
        assert none == 0 < one == two  # All need the same of it, and one gets it around its slow link.
        for agent in cluster.living:
            assert not differences(infer(agent, "squeezenet", INPUTS), expected)
        leads = cluster.agents[cluster.status()["leader"]]
        asked, killed = (agent for agent in cluster.living if agent is not leads)
        tally = requests_during(asked, "squeezenet", INPUTS, expected, REQUESTS, killed.kill)
        assert (tally.sent, tally.answered, tally.lost, tally.wrong) == (REQUESTS, REQUESTS, [], 0)
