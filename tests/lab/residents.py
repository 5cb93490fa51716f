"""The processes on a host: all that are in its network namespace, whoever started them. Does I/O: /proc and
signals."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.hosts import LabError
from tests.lab.system import NAMESPACES

OBEYED_S = 10.0
"""Seconds for a signal to take effect: the kernel has to run the process first, and one that reads a disk may
take a while."""
STOPPED, DEAD, UNINTERRUPTIBLE = "Tt", "ZX", "D"


def processes(namespace: str) -> list[int]:
    """Return the ids of the living processes in this network namespace; [] if there is no such namespace."""
    try:
        wanted = (NAMESPACES / namespace).stat().st_ino
    except FileNotFoundError:
        return []
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_in(entry, wanted)
    ]


def _is_in(process: Path, namespace: int) -> bool:
    try:
        return (process / "ns" / "net").stat().st_ino == namespace and state(process) not in DEAD
    except OSError:
        return False  # the process has ended, and is in no namespace


def state(process: Path) -> str:
    """Return the state letter of /proc/PID/stat. Raises OSError if there is no such process."""
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


def wait_for(namespace: str, process: subprocess.Popen[Any]) -> None:
    """Wait until the process has entered the namespace, or has ended. Raises LabError if it does neither."""
    wanted = (NAMESPACES / namespace).stat().st_ino
    entry = Path(f"/proc/{process.pid}")
    _until(lambda: process.poll() is not None or _is_in(entry, wanted), f"enter {namespace}")


def freeze(namespace: str) -> None:
    """Send SIGSTOP to all processes, including those that they start meanwhile. Raises LabError if one goes on."""
    _until(lambda: _stop(namespace), f"stop the processes of {namespace}")


def thaw(namespace: str) -> None:
    _send(processes(namespace), signal.SIGCONT)


def kill(namespace: str) -> None:
    """Send SIGKILL until no process is left. Raises LabError if one is."""
    _until(lambda: _send(processes(namespace), signal.SIGKILL), f"kill the processes of {namespace}")


def _stop(namespace: str) -> bool:
    """Stop all processes, and return whether they are stopped or will be before they go on.

    A process that waits in the kernel stops before it goes on. It may wait for ever if its child was stopped
    between fork and exec.
    """
    waiting = True
    for pid in processes(namespace):
        try:
            letter = state(Path(f"/proc/{pid}"))
        except OSError:
            continue  # the process has ended
        if letter not in STOPPED:
            _send([pid], signal.SIGSTOP)
            waiting = waiting and letter == UNINTERRUPTIBLE
    return waiting


def _send(pids: list[int], number: int) -> bool:
    """Send a signal, and return whether there was no process to send it to."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it ended before the signal
    return not pids


def _until(done: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + OBEYED_S
    while not done():
        if time.monotonic() > until:
            raise LabError(f"could not {what} within {OBEYED_S:.0f} s")
        time.sleep(0.002)
