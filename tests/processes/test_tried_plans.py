"""A box that computes wrong numbers: real agents, one of whose workers spoils whatever is a part of a model. No request
gets what it computed."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.models import zoo_model

from edgepart.cli.local import LocalCluster
from tests.processes.asking import deploy, differences, infer, run_alone
from tests.processes.conftest import OPTIONS

pytestmark = pytest.mark.processes

SPOILING = """
import sys
if "edgepart.agent.workers.worker" in sys.orig_argv:
    from edgepart.agent.execution.runtime import loaded_models
    bind = loaded_models.LoadedModel.bind
    def spoilt(self, inputs, outputs):
        bound = bind(self, inputs, outputs)
        right = bound.run
        def run(options=None):
            right(options)
            for one in outputs if not self.segment.whole else ():
                one += 1
        bound.run = run
        return bound
    loaded_models.LoadedModel.bind = spoilt
"""


@pytest.fixture
def spoilt(tmp_path: Path) -> Iterator[LocalCluster]:
    """The worker processes of "b" add one to all that they compute, but where it is a whole model."""
    folder = tmp_path / "spoiling"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SPOILING)
    env = {"b": {"PYTHONPATH": str(folder)}}
    with LocalCluster(["a", "b"], options=OPTIONS, env=env, folder=tmp_path / "cluster") as cluster:
        yield cluster


def test_a_plan_that_gives_wrong_answers_is_not_served(spoilt: LocalCluster) -> None:
    model = zoo_model("resnet50_small")
    deploy(spoilt, model.path, "net", "--strategy", "bbgrap")
    inputs = model.inputs(1)
    expected = run_alone(model.path, inputs)
    for agent in spoilt.living:
        assert not differences(infer(agent, "net", inputs), expected)
    leader = spoilt.agents[spoilt.status()["leader"]]
    (card,) = leader.type("models", "--json")["models"]
    assert "is not served: its answers are not the model's" in card["note"]
    assert "is not served" in card["why"]
    with urllib.request.urlopen(leader.url + "/metrics", timeout=30) as metrics:
        assert 'edgepart_plans_refused_total{model="net"}' in metrics.read().decode()
    assert "a plan for net is not served" in leader.log.read_text()


@pytest.mark.nightly
def test_a_plan_is_not_refused_over_a_rounding(trio: LocalCluster) -> None:
    """In noise, a detector of text sees next to nothing, and every rounding shows in that."""
    model = zoo_model("ppocrv4_det")
    plan = deploy(trio, model.path, "det", "--strategy", "bbgrap", "--shape", "x=1,3,320,320")
    assert "is not served" not in plan["why"] and len(plan["devices"]) == 3
    inputs = model.inputs(1)
    for agent in trio.living:
        assert not differences(infer(agent, "det", inputs), run_alone(model.path, inputs))
