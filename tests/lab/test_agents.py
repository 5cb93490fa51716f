"""Agents on a lab's hosts: they find each other by mDNS, answer like one session, and notice a host that is
cut off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.models.builder import Builder
from benchmarks.models.model import save

from tests.lab.cluster import cluster
from tests.lab.hosts import Host
from tests.lab.lab import Lab
from tests.processes.asking import deploy_over, differences, infer, run_alone

pytestmark = pytest.mark.processes

WIDTH = 256


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    b = Builder("dense")
    x = b.input("x", (1, WIDTH))
    for _ in range(3):
        x = b.add("Relu", b.linear(x, WIDTH, WIDTH, gain=2.0))
    b.output(x, "y")
    save(b.model(), tmp_path / "dense.onnx")
    return tmp_path / "dense.onnx"


def test_they_find_each_other_answer_and_miss_who_is_cut_off(possible: None, dense: Path) -> None:
    hosts = [
        Host("pi-a", slow=2, memory="1G", rate="100mbit", disk="1G"),
        Host("pi-b", slow=2, rate="100mbit"),
    ]
    with Lab(hosts) as lab, cluster(lab) as running:
        assert not running.notes, "told by address, not found by mDNS"
        lab.add(Host("pi-c", slow=2))
        running.add("pi-c")
        running.wait_for_members(3)
        running.wait(
            lambda: all(one["measured"] for one in running.status()["members"]), "pi-c to be measured"
        )
        before = lab.traffic()
        deploy_over(running, ["pi-a", "pi-b", "pi-c"], dense, "dense", "--strategy", "bbgrap")
        inputs = {"x": np.random.default_rng(0).standard_normal((1, WIDTH), np.float32)}
        expected = run_alone(dense, inputs)
        for agent in running.living:
            assert not differences(infer(agent, "dense", inputs), expected)
        after = lab.traffic()
        assert all(after[name].sent_bytes > before[name].sent_bytes for name in lab.hosts)
        lab.cut("pi-c")
        first = running.first

        def members() -> set[str]:
            return {one["name"] for one in running.status(first)["members"] if one["state"] == "alive"}

        running.wait(lambda: members() == {"pi-a", "pi-b"}, "pi-c to be missed")
        assert not differences(infer(first, "dense", inputs), expected)
        lab.heal()
        running.wait_for_members(3)
