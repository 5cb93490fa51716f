"""Agents that get little of the CPU, because other programs take it: everybody hears so, and for a while nothing follows.
Real agents and endless loops, all of them on one core. How long anything takes is not looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from benchmarks.models import light, sample_inputs

from edgepart.agent.host.system import thread_times
from edgepart.cli.local import LocalCluster
from edgepart.planner.model.load import load_graph
from tests.processes.asking import deploy, differences, infer, run_alone

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not thread_times([os.getpid()]), reason="the kernel does not tell how long threads wait"
    ),
]

LOOPS = 2
ASKED_S = 12.0
"""A drift that counts is told after two looks, two seconds apart, and planned for four seconds later."""


@contextmanager
def one_core() -> Iterator[None]:
    """What is started meanwhile shares one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    options = ("--threads", "1", "--no-mdns")
    with ExitStack() as ending:
        with one_core():
            made = LocalCluster(("a", "b"), options=options, folder=tmp_path, listen="127.0.0.1:0")
            cluster = ending.enter_context(made)
        yield cluster


@pytest.fixture
def load(pair: LocalCluster) -> Iterator[None]:
    """Endless loops, each in a session of its own, as kernels may share the CPU out by session."""
    with one_core():
        command = [sys.executable, "-c", "while True: pass"]
        loops = [subprocess.Popen(command, start_new_session=True) for _ in range(LOOPS)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.nightly
@pytest.mark.usefixtures("load")
def test_a_load_of_some_seconds_makes_no_plan_and_no_suspect(pair: LocalCluster) -> None:
    model = light("squeezenet")
    inputs = sample_inputs(load_graph(model))
    expected = run_alone(model, inputs)
    pair.wait(lambda: all(row["starved"] for row in pair.status()["members"]), "them to be starved")
    deploy(pair, model, "net", "--search-budget", "1")
    (before,) = pair.status()["deployments"]
    until = time.monotonic() + ASKED_S
    while time.monotonic() < until:
        assert not differences(infer(pair.first, "net", inputs), expected)
    seen = pair.status()
    (after,) = seen["deployments"]
    for row in seen["members"]:
        assert 0.0 < row["starved"]["share"] <= 1.0
        assert row["note"].startswith("busy: its threads waited ")
    assert (after["epoch"], after["note"]) == (before["epoch"], before["note"])
    logs = "".join(agent.log.read_text() for agent in pair.agents.values())
    assert "a plan for net on" in logs
    assert " (now " not in logs  # none was compared with what serves
    assert " is suspect" not in logs and " is gone" not in logs
