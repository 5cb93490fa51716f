"""A box whose disk takes seconds for each flush (an SD card under load) is a member like any other: it beats, answers and
leads. Only what has to be on its disk first waits for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.cli.emulation import sitecustomize as slow
from edgepart.cli.local import LocalAgent, LocalCluster
from tests.processes.asking import deploy, infer, undeploy

pytestmark = pytest.mark.processes

NAMES = ("a", "b", "c")
FLUSH_S = 1.5
"""A file is flushed twice, itself and its folder: for longer than an agent may be silent."""


def scaled(folder: Path, factor: float) -> Path:
    """A model that multiplies by `factor`: one of each is another model."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    constant = helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])], "g", values[:1], values[1:], [constant]
    )
    path = folder / f"times{factor}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def set_flush(cluster: LocalCluster, names: tuple[str, ...], seconds: float) -> None:
    for name in names:
        new = cluster.folder / f"{name}.new"
        new.write_text(str(seconds))
        new.replace(cluster.folder / f"{name}.fsync")


def missed(cluster: LocalCluster, agent: LocalAgent) -> list[str]:
    """What other agents said of it when they heard nothing of it."""
    lines = [line for other in cluster.agents.values() for line in other.log.read_text().splitlines()]
    return [line for line in lines if f" {agent.name} is suspect" in line or f" {agent.name} is gone" in line]


def asked(agent: LocalAgent, factor: float) -> None:
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(infer(agent, "net", {"x": x})["y"], factor * x)


@pytest.mark.nightly
def test_agents_with_slow_disks_are_suspected_by_nobody_and_lead(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(Path(slow.__file__).parent), os.environ.get("PYTHONPATH")]))
    env = {name: {"PYTHONPATH": path, slow.FSYNC_VARIABLE: f"@{tmp_path / name}.fsync"} for name in NAMES}
    for name in NAMES:
        (tmp_path / f"{name}.fsync").write_text("0")
    options = ("--threads", "1", "--no-mdns")
    with LocalCluster(NAMES, options=options, env=env, folder=tmp_path, listen="127.0.0.1:0") as cluster:
        box, leader = cluster.agents["c"], cluster.status()["leader"]
        set_flush(cluster, ("c",), FLUSH_S)
        for factor in (2.0, 3.0):
            deploy(cluster, scaled(tmp_path, factor), "net")
            asked(box, factor)
        cluster.wait(lambda: "the disk is slow" in cluster.status(box)["disk"]["trouble"], "it to say so")
        undeploy(cluster, "net")
        deploy(cluster, scaled(tmp_path, 4.0), "net")
        assert missed(cluster, box) == []
        assert cluster.status()["leader"] == leader

        set_flush(cluster, NAMES, FLUSH_S)
        cluster.agents[leader].kill()
        cluster.wait_for_members(2)
        for agent in cluster.living:
            asked(agent, 4.0)
        leads = cluster.agents[cluster.status()["leader"]]
        term = json.loads((leads.state / "term.json").read_text())["term"]
        assert term >> 24 >= cluster.status(leads)["term"], "it leads in a term that is on its disk"
        (other,) = (agent for agent in cluster.living if agent is not leads)
        assert missed(cluster, leads) == [] == missed(cluster, other)
