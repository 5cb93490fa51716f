"""What agents compile is there after a restart, and is made again where it was damaged. Real agents; how long loading takes
is not looked at, only what is loaded and answered."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.models import light, sample_inputs
from onnx import helper, numpy_helper

from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, differences, infer, run_alone

pytestmark = pytest.mark.processes

ALONE = ("--threads", "1", "--no-mdns")
THROWN_AWAY = "is thrown away"


def compiled(agent: LocalAgent) -> dict[str, int]:
    """By entry its file's number, which is another one where it was made again beside the old one."""
    return {path.name: path.stat().st_ino for path in (agent.state / "compiled" / "entries").iterdir()}


def restart(cluster: LocalCluster) -> None:
    agent = cluster.first
    assert agent.stop() == 0
    agent.start()
    cluster.wait_for_members(1)


def in_a_segment(folder: Path) -> Path:
    """squeezenet with a sparse weight: even alone, a device does not run it as its file has it, but as a segment, which is
    compiled."""
    model = onnx.load(light("squeezenet"))
    (output,) = model.graph.output
    values = numpy_helper.from_array(np.full(3, 0.25, np.float32), "added")
    indices = numpy_helper.from_array(np.array([1, 5, 9]), "places")
    extents = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, extents))
    model.graph.node.append(helper.make_node("Add", [output.name, "added"], ["sum"]))
    model.graph.output[0].name = "sum"
    path = folder / "squeezenet.onnx"
    onnx.save_model(model, path)
    return path


@pytest.mark.nightly
def test_compiled_segments_survive_a_restart_and_damaged_ones_are_made_again(tmp_path: Path) -> None:
    model = in_a_segment(tmp_path)
    inputs = sample_inputs(load_graph(model))
    expected = run_alone(model, inputs)
    with LocalCluster(["solo"], options=ALONE, folder=tmp_path, listen="127.0.0.1:0") as cluster:
        agent = cluster.first
        deploy(cluster, model, "net")
        assert not differences(infer(agent, "net", inputs), expected)
        assert " compiled; " in agent.log.read_text()
        before = compiled(agent)
        assert before
        restart(cluster)
        assert not differences(infer(agent, "net", inputs), expected)
        assert compiled(agent) == before
        assert THROWN_AWAY not in agent.log.read_text()
        for path in (agent.state / "compiled" / "entries").iterdir():
            # Or the system would give the old file's number to the next one.
            os.link(path, tmp_path / f"{path.name}.old")
        for path in (agent.state / "compiled" / "weights").iterdir():
            path.write_bytes(bytes(path.stat().st_size))
        restart(cluster)
        assert not differences(infer(agent, "net", inputs), expected)
        assert THROWN_AWAY in agent.log.read_text()
        assert compiled(agent).keys() == before.keys()
        assert compiled(agent) != before


@pytest.mark.nightly
def test_none_is_kept_where_there_is_to_be_none(tmp_path: Path) -> None:
    model = in_a_segment(tmp_path)
    inputs = sample_inputs(load_graph(model))
    options = (*ALONE, "--compiled", "0")
    with LocalCluster(["solo"], options=options, folder=tmp_path, listen="127.0.0.1:0") as cluster:
        deploy(cluster, model, "net")
        assert not differences(infer(cluster.first, "net", inputs), run_alone(model, inputs))
        assert not (cluster.first.state / "compiled").exists()
