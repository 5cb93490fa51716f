"""Child: a process of the agent's own, that works on what comes through a pipe and ends with it. Door."""

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


def started(work: Callable[..., None], *args: object, name: str) -> tuple[BaseProcess, Connection[Any, Any]]:
    """The process that runs `work(its end of the pipe, *args)`, and our end of it. OSError where there can be none.

    A fresh interpreter: the agent has threads, and a fork of those may hang.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(work, theirs, *args), name=name, daemon=True)
    resource_tracker.ensure_running()  # when it is started, it unblocks signals
    with deaf():
        process.start()
    theirs.close()  # Only the process holds its end now, so that its death ends our reading.
    return process, ours


@contextmanager
def deaf() -> Iterator[None]:
    """What is started meanwhile hears neither Ctrl-C nor SIGTERM. Terminals and service managers send them to all processes
    of an agent at once; the agent first ends what is under way, for which it needs the others, and then these."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: Callable[..., None], *args: object) -> None:
    """In the process: work that is under way when the agent is killed is for nobody, and may take seconds yet."""
    Thread(target=_end_with_parent, name="parent", daemon=True).start()
    work(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
