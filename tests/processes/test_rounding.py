"""What travels between agents is rounded where a user asks: fewer bytes, answers as far off as is said, and told so."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from typing import Any

import pytest
from benchmarks.comparing import largest_difference
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalCluster, edgepart
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, infer, run_alone, undeploy

pytestmark = pytest.mark.processes

PATH = light("squeezenet")
INPUTS = sample_inputs(load_graph(PATH))
ROWS = ("--strategy", "modnn", "--axis", "height")
OFF = re.compile(r"off by up to (\S+) of their largest magnitude")


def plan_of(cluster: LocalCluster, name: str) -> Any:
    with urllib.request.urlopen(f"{cluster.first.url}/api/models/{name}/plan", timeout=10) as answer:
        return json.load(answer)


@pytest.mark.nightly
def test_rounded_transfers_are_shorter_and_answers_as_far_off_as_is_said(trio: LocalCluster) -> None:
    expected, sent = run_alone(PATH, INPUTS), {}
    for kind in ("float16", "int8"):
        deployed, plan = on_all_three(trio, kind)
        sent[kind] = sum(device["sent_bytes"] for device in plan["devices"].values())
        assert plan["transfer_dtype"] == deployed["transfer_dtype"] == kind
        assert f"rounded to {kind}" in deployed["why"]
        said = OFF.search(deployed["rounding"])
        assert said is not None and 0 < float(said[1]) < 0.02
        card = measured(trio)
        found = OFF.search(card["rounding"])
        assert card["transfer_dtype"] == kind and found is not None and 0 < float(found[1]) < 0.02
        if [card["epoch"]["term"], card["epoch"]["number"]] == deployed["epoch"]:
            assert card["rounding"] == deployed["rounding"]
        for agent in trio.living:
            off = largest_difference(infer(agent, "rounded", INPUTS), expected)
            # Other inputs than those that were compared: of the same size.
            assert 0 < off < max(20 * float(said[1]), 0.01)
    assert sent["int8"] < 0.6 * sent["float16"]
    undeploy(trio, "rounded")


def on_all_three(cluster: LocalCluster, kind: str) -> tuple[Any, Any]:
    """What deploying said, and the plan; again where one device was measured to be too slow just then to have a part."""
    while True:
        deployed = deploy(cluster, PATH, "rounded", *ROWS, "--transfer-dtype", kind)
        plan = plan_of(cluster, "rounded")
        if len(plan["devices"]) == 3:
            return deployed, plan
        undeploy(cluster, "rounded")
        time.sleep(1.0)


def measured(cluster: LocalCluster) -> dict[str, Any]:
    """The deployment, once what rounding costs is known of the plan that serves: after a move it is compared anew."""
    while True:
        (card,) = edgepart("models", "--state", str(cluster.first.state))["models"]
        if card["rounding"]:
            return dict(card)
        time.sleep(0.1)
