"""The processes on a host: all that are in its network namespace, whoever started them. A door: /proc and signals."""

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
"""A signal takes effect when the kernel next runs the process; one that reads a disk may take a while."""
STOPPED, DEAD, UNINTERRUPTIBLE = "Tt", "ZX", "D"


def processes(namespace: str) -> list[int]:
    """Ids of the living ones in this network namespace; [] where there is none of the name."""
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
        return False  # it has ended, and is in none


def state(process: Path) -> str:
    """The letter of /proc/PID/stat. OSError where there is none."""
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


def wait_for(namespace: str, process: subprocess.Popen[Any]) -> None:
    """Until the process has come into the namespace, or has ended. LabError where it does neither."""
    wanted = (NAMESPACES / namespace).stat().st_ino
    entry = Path(f"/proc/{process.pid}")
    _until(lambda: process.poll() is not None or _is_in(entry, wanted), f"enter {namespace}")


def freeze(namespace: str) -> None:
    """SIGSTOP, to what they start meanwhile too. LabError where one goes on."""
    _until(lambda: _stop(namespace), f"stop the processes of {namespace}")


def thaw(namespace: str) -> None:
    _send(processes(namespace), signal.SIGCONT)


def kill(namespace: str) -> None:
    """SIGKILL, until nobody is left. LabError where somebody is."""
    _until(lambda: _send(processes(namespace), signal.SIGKILL), f"kill the processes of {namespace}")


def _stop(namespace: str) -> bool:
    """Whether all of them are stopped, or as good as that: one that waits in the kernel stops before it goes on. That
    may be never, where it waits for a child that was stopped between its fork and its exec."""
    waiting = True
    for pid in processes(namespace):
        try:
            letter = state(Path(f"/proc/{pid}"))
        except OSError:
            continue  # it has ended
        if letter not in STOPPED:
            _send([pid], signal.SIGSTOP)
            waiting = waiting and letter == UNINTERRUPTIBLE
    return waiting


def _send(pids: list[int], number: int) -> bool:
    """Whether there is nobody left to send to."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it was quicker
    return not pids


def _until(done: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + OBEYED_S
    while not done():
        if time.monotonic() > until:
            raise LabError(f"could not {what} within {OBEYED_S:.0f} s")
        time.sleep(0.002)
