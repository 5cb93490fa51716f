"""A device that slows down after it was measured gets less to do. Real agents; how long anything takes is not looked at,
only who does how much. That it gets more again when it is as it was, after a minute, is tried in virtual time."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.cli.emulation import sitecustomize as slow
from edgepart.cli.local import LocalCluster
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, differences, infer, run_alone

pytestmark = pytest.mark.processes

BEFORE, SLOW = 4.0, 16.0


def set_factor(file: Path, factor: float) -> None:
    """A whole new file in place of the one that is there."""
    new = file.with_suffix(".new")
    new.write_text(str(factor))
    new.replace(file)


def part_of_b(cluster: LocalCluster) -> float:
    """Of the arithmetic of a request."""
    with urllib.request.urlopen(f"{cluster.first.url}/api/models/net/plan", timeout=10) as answer:
        devices = json.load(answer)["devices"]
    flops = {name: one["flops"] for name, one in devices.items()}
    return float(flops.get("b", 0.0) / sum(flops.values()))


@pytest.mark.nightly
def test_work_moves_away_from_a_device_that_slows_down(tmp_path: Path) -> None:
    names, files = ("a", "b"), {}
    for name in names:
        files[name] = tmp_path / f"{name}.factor"
        set_factor(files[name], BEFORE)
    path = os.pathsep.join(filter(None, [str(Path(slow.__file__).parent), os.environ.get("PYTHONPATH")]))
    env = {name: {"PYTHONPATH": path, slow.VARIABLE: f"@{files[name]}"} for name in names}
    model = light("squeezenet")
    inputs = sample_inputs(load_graph(model))
    expected = run_alone(model, inputs)
    options = ("--threads", "1", "--no-mdns")
    with LocalCluster(names, options=options, env=env, folder=tmp_path, listen="127.0.0.1:0") as cluster:
        deploy(cluster, model, "net", "--strategy", "bbgrap", "--axis", "height", "--search-budget", "1")

        def asked_until(done: Callable[[float], bool]) -> bool:
            for _ in range(5):
                assert not differences(infer(cluster.first, "net", inputs), expected)
            return done(part_of_b(cluster))

        at_first = part_of_b(cluster)
        assert 0.3 < at_first < 0.7
        set_factor(files["b"], SLOW)
        cluster.wait(lambda: asked_until(lambda now: now < 0.7 * at_first), "less work for b", timeout_s=120)
        (card,) = cluster.status()["deployments"]
        assert card["note"].startswith("refined: shares moved after measuring (")
