"""What agents compile is there after a restart, and is made again where it was damaged. Real agents; how long loading takes
is not looked at, only what is loaded and answered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.model import load_graph
from tests.processes.asking import alone, deploy, differences, infer

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


def test_compiled_segments_survive_a_restart_and_damaged_ones_are_made_again(tmp_path: Path) -> None:
    model = light("squeezenet")
    inputs = sample_inputs(load_graph(model))
    expected = alone(model, inputs)
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


def test_none_is_kept_where_there_is_to_be_none(tmp_path: Path) -> None:
    model = light("squeezenet")
    inputs = sample_inputs(load_graph(model))
    options = (*ALONE, "--compiled", "0")
    with LocalCluster(["solo"], options=options, folder=tmp_path, listen="127.0.0.1:0") as cluster:
        deploy(cluster, model, "net")
        assert not differences(infer(cluster.first, "net", inputs), alone(model, inputs))
        assert not (cluster.first.state / "compiled").exists()
