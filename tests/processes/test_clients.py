"""The Python client and the command line lose no request when the very agent that they talk to is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from benchmarks.models import light, sample_inputs

import edgepart
from edgepart.cli.local import LocalCluster
from edgepart.planner.model.load import load_graph
from tests.processes.asking import differences, run_alone

pytestmark = pytest.mark.processes

PATH = light("squeezenet")
INPUTS = sample_inputs(load_graph(PATH))
REQUESTS = 60


@pytest.fixture
def two(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two members, which are enough, and are up sooner than three."""
    with LocalCluster(["a", "b"], options=("--threads", "1"), folder=tmp_path) as cluster:
        yield cluster


def test_no_request_is_lost_with_the_agent_that_it_was_sent_to(two: LocalCluster, tmp_path: Path) -> None:
    expected, asked = run_alone(PATH, INPUTS), two.first
    examples = Path(__file__).parents[2] / "examples"
    ran = subprocess.run(
        [sys.executable, examples / "first_steps.py", PATH],
        env=os.environ | {"EDGEPART_STATE": str(asked.state)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "first-steps is served by" in ran.stdout
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    with edgepart.connect(state=asked.state) as client, ThreadPoolExecutor(2) as pool:
        client.deploy(PATH, "net")

        def is_right(number: int) -> bool:
            if number == REQUESTS // 4:
                asked.kill()
            return not differences(client.infer("net", INPUTS).outputs, expected)

        assert all(pool.map(is_right, range(REQUESTS)))
        assert client.url != asked_url(asked.state)

    # A command that begins after its agent was killed knows the others from the state folder.
    np.savez(tmp_path / "in.npz", allow_pickle=False, **INPUTS)
    asked.type("infer", "net", "--input", str(tmp_path / "in.npz"), "--output", str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as written:
        assert not differences(dict(written), expected)


def asked_url(state: Path) -> str:
    return str(json.loads((state / "agent.json").read_text())["http"])
