"""Weights of few bits on real agents: the smaller model serves, and everybody is told how far its answers are off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.comparing import largest_difference

from edgepart.agent.quantise.work import MODEL
from edgepart.cli.local import LocalCluster, edgepart
from tests.agent.quantise.models import mixed, saved
from tests.processes.asking import deploy, infer, run_alone, undeploy

pytestmark = pytest.mark.processes

INPUTS = {"ids": np.array([3, 1, 4, 1])}


def test_the_smaller_model_serves_and_all_are_told(
    trio: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = saved(mixed(), tmp_path / "m.onnx")
    deployed = deploy(trio, model, "smaller", "--weights", "int8", "--shape", "ids=4")
    assert deployed["quantised"].startswith("int8 weights (made by ONNX Runtime")
    (made,) = (tmp_path / "cache").rglob(MODEL)
    agent = trio.living[-1]  # Another one than that which got it.
    answer = infer(agent, "smaller", INPUTS)
    assert largest_difference(answer, run_alone(made, INPUTS)) < 0.01
    assert 0 < largest_difference(answer, run_alone(model, INPUTS)) < 0.1
    state = ("--state", str(agent.state))
    (card,) = edgepart("models", *state)["models"]
    assert card["quantised"] == deployed["quantised"]
    assert "weights: int8" in edgepart("export", *state)["description"]
    undeploy(trio, "smaller")
