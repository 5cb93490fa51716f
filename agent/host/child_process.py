"""Child processes: starts a process that serves the agent through a pipe and ends with the agent. Door: processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any

from edgepart.agent.host import log_format

BESIDE_NICENESS = 5
"""How much lower the priority of processes is that work for a deployment before it serves (reading the model, cutting its
weights, its answer for comparison). They slow requests down little, and still finish beside programs that compute all the
time: beside one of these they get a quarter of a processor, and with 10 they got a tenth."""


def start_child(
    work: Callable[..., None], *args: object, name: str
) -> tuple[BaseProcess, Connection[Any, Any]]:
    """Start a process that runs `work(its end of the pipe, *args)`; return it and our end. Raises OSError if
    that fails.

    The process is a fresh interpreter: the agent has threads, and a fork of a process with threads may hang.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_work, args=(log_format.settings(), name, work, theirs, *args), name=name, daemon=True
    )
    resource_tracker.ensure_running()  # before signals are blocked, because starting it unblocks them
    with deaf():
        process.start()
    theirs.close()  # Now only the child holds its end, so our reading ends when the child dies.
    return process, ours


@contextmanager
def deaf() -> Iterator[None]:
    """Make processes that are started in this context ignore Ctrl-C and SIGTERM. Terminals and service
    managers send these to all processes of an agent at once, but the agent needs its children to finish its
    work, and ends them itself after that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(logs: log_format.LogSettings, name: str, work: Callable[..., None], *args: object) -> None:
    """Do the work, in the child. The child ends with the agent even in the middle of its work, which nobody
    needs then."""
    logs.apply(name.removeprefix("edgepart-"))
    Thread(target=_end_with_parent, name="parent", daemon=True).start()
    work(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
