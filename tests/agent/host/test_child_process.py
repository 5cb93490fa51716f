"""A process of the agent's own ends with the agent, also while it is at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from edgepart.agent.host.child_process import start_child

GONE_WITHIN_S = 60.0

PARENT = """
from edgepart.agent.host.child_process import start_child
from tests.agent.host.test_child_process import never_ends
if __name__ == "__main__":
    process, pipe = start_child(never_ends, name="child")
    print(process.pid, pipe.recv(), flush=True)
    pipe.recv()
"""


def never_ends(pipe: Connection[Any, Any]) -> None:
    """Looks at its pipe no more: it computes."""
    pipe.send("at work")
    while True:
        sum(range(1000))


def adds_up(pipe: Connection[Any, Any], more: int) -> None:
    pipe.send(pipe.recv() + more)


def test_it_works_on_what_comes_through_its_pipe() -> None:
    process, pipe = start_child(adds_up, 2, name="child")
    pipe.send(40)
    assert pipe.recv() == 42
    process.join()
    assert process.exitcode == 0


def test_it_does_not_outlive_an_agent_that_is_killed_while_it_computes(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid, _, said = parent.stdout.readline().strip().partition(" ")
        assert said == "at work"
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + GONE_WITHIN_S
    while _lives(int(pid)) and time.monotonic() < until:
        os.sched_yield()
    outlived = _lives(int(pid))
    if outlived:
        os.kill(int(pid), signal.SIGKILL)
    assert not outlived


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
