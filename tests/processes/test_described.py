"""Descriptions of operators on real agents: a described function is divided, and a false description serves nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgepart.cli.local import LocalCluster
from tests.planner.tdl.functions import DOMAIN, mixed_rows, noise, scanned_rows
from tests.processes.asking import deploy, differences, infer, run_alone, undeploy

pytestmark = pytest.mark.processes

TRUE = f"""
from edgepart.tdl import Opaque, operator

@operator("{DOMAIN}", "Rows")
def rows(a, b):
    return lambda i, j: Opaque(a[i, :], b[:, j])
"""
FALSE = f"""
from edgepart.tdl import Opaque, operator

@operator("{DOMAIN}", "Mixed")
def mixed(a):
    return lambda i, j: Opaque(a[i, j])  # It depends on a[:, j].
"""


def deployed(cluster: LocalCluster, folder: Path, model: bytes, text: str) -> Any:
    """What the leader says of a model that is divided by rows; every agent's answer is the undivided one's."""
    path, operators = folder / "m.onnx", folder / "my-ops.py"
    path.write_bytes(model)
    operators.write_text(text)
    options = ("--operators", str(operators), "--strategy", "bbgrap", "--axis", "batch")
    said = deploy(cluster, path, "described", *options)
    inputs = {"x": noise(24, 6)}
    expected = run_alone(path, inputs)
    for agent in cluster.living:
        assert not differences(infer(agent, "described", inputs), expected)
    undeploy(cluster, "described")
    return said


def test_a_described_function_is_divided(trio: LocalCluster, tmp_path: Path) -> None:
    said = deployed(trio, tmp_path, scanned_rows(), TRUE)
    assert said["devices"] == ["a", "b", "c"]
    assert "2 of 2 layers are split along batch over 3 devices" in said["why"]


def test_a_false_description_is_found_when_the_plan_is_tried(trio: LocalCluster, tmp_path: Path) -> None:
    said = deployed(trio, tmp_path, mixed_rows(), FALSE)
    assert len(said["devices"]) == 1
    assert "A plan on a, b, c is not served: its answers are not the model's" in said["why"]
