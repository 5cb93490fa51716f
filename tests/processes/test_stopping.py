"""Agents start and stop as systemd and people expect: within seconds, whatever is under way, and never two on one state."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import onnx
import psutil
import pytest
from benchmarks.models import light
from benchmarks.scale import transformer

from edgepart.cli.local import LocalAgent, LocalCluster, edgepart
from edgepart.planner.errors import ClusterError
from tests.nightly import nightly
from tests.processes.asking import deploy

pytestmark = pytest.mark.processes

WITHIN_S = 15
"""Generous for a machine with other work; systemd would give 90 s."""
ALONE = ("--threads", "1", "--no-mdns")


@pytest.fixture
def solo(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(["solo"], options=ALONE, folder=tmp_path, listen="127.0.0.1:0") as cluster:
        yield cluster


def run_agent(state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgepart", "agent", "--state", str(state), *ALONE, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def frozen(agent: LocalAgent) -> list[psutil.Process]:
    """The processes that work on models beside the agent, once one has begun: stopped, so that they never end by
    themselves."""
    children = []
    # A search is a child of the planning process.
    below = psutil.Process(agent.addresses["pid"]).children(recursive=True)
    for child in below:
        with contextlib.suppress(psutil.NoSuchProcess):  # others come and go
            if "edgepart.agent.host.child_process" in child.cmdline() and child.cpu_times().user > 1.0:
                child.suspend()
                children.append(child)
    return children


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def in_background(cluster: LocalCluster, path: Path) -> Thread:
    """A deployment whose end is not waited for."""

    def work() -> None:
        with contextlib.suppress(ClusterError):  # its agent stops
            deploy(cluster, path, "net")

    thread = Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, *nightly(signal.SIGINT)])
def test_told_to_stop_while_a_model_is_worked_on(solo: LocalCluster, number: int, tmp_path: Path) -> None:
    agent, path = solo.first, tmp_path / "transformer.onnx"
    onnx.save(transformer(20_000), path)  # seconds of work on a fast machine, too, so that it is met
    deploying = in_background(solo, path)
    children = solo.wait(lambda: frozen(agent), "work on the model")
    assert deploying.is_alive(), "the model serves already"
    agent.signal(number)  # to the whole group, as a terminal does
    assert agent.process is not None
    assert agent.process.wait(WITHIN_S) == 0
    assert all(map(gone, children))
    assert not (agent.state / "agent.json").exists()
    deploying.join(60)
    assert "Traceback" not in agent.log.read_text(), agent.log.read_text()[-3000:]


@pytest.mark.nightly
def test_told_to_stop_while_a_model_comes_in(solo: LocalCluster) -> None:
    agent = solo.first
    deploying = in_background(solo, light("vgg19"))
    solo.wait(lambda: [*(agent.state / "store/models").iterdir()], "the model to be stored")
    assert agent.stop(WITHIN_S) == 0
    deploying.join(60)
    assert "Traceback" not in agent.log.read_text(), agent.log.read_text()[-3000:]
    agent.start()
    solo.wait(lambda: agent.addresses, "the agent to be up again", agent)


def test_a_second_agent_on_the_same_state_is_refused(solo: LocalCluster) -> None:
    again = run_agent(solo.first.state)
    assert again.returncode == 2
    assert "already; stop it" in again.stderr
    assert solo.status()["leader"] == "solo"
    solo.first.kill()
    solo.first.start()
    solo.wait(lambda: solo.first.addresses, "the agent to be up again", solo.first)


@pytest.mark.nightly
def test_a_port_in_use_is_said_so(tmp_path: Path) -> None:
    edgepart("init", "--state", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option, other in (("--listen", "--http"), ("--http", "--listen")):
            began = time.monotonic()
            done = run_agent(tmp_path, option, address, other, "127.0.0.1:0")
            assert done.returncode in (1, 2)
            assert address in done.stderr
            assert "Traceback" not in done.stderr
            assert time.monotonic() - began < 60
    assert not (tmp_path / "agent.json").exists()


@pytest.mark.parametrize("name", ["term.json", *nightly("deployments.json")])
def test_a_damaged_state_file_is_kept_aside_and_named(solo: LocalCluster, name: str) -> None:
    """Members have what is in most of them; what cannot be read is kept for whoever wants to look at it."""
    agent = solo.first
    agent.stop()
    (agent.state / name).write_text("{")
    agent.start()
    solo.wait(lambda: agent.addresses, "the agent to be up again")
    assert (agent.state / f"{name}.damaged").read_text() == "{"
    log = agent.log.read_text()
    assert f"{agent.state / name} is damaged" in log
    assert "Traceback" not in log
