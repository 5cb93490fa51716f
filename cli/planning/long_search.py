"""A long search on the command line: it says now and then how far it is, and Ctrl-C ends it at once. Door: it has a clock,
a thread and a signal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIG_DFL, SIGINT, signal
from threading import Event, Thread, current_thread, main_thread

from edgepart.cli.output import note

SILENT_S, REMINDER_S = 2.0, 10.0
"""How long the command may say nothing at first, and later."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Has Ctrl-C end the program at once, also while a solver computes: Python would look at the signal only when the
    solver is done. There is nothing to clean up."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal(SIGINT, SIG_DFL)
    try:
        yield
    finally:
        signal(SIGINT, before)


@contextmanager
def said_now_and_then(news: Callable[[float], str]) -> Iterator[None]:
    """Prints `news`, of the seconds since the beginning, to stderr now and then; nothing if the search is short."""
    done = Event()

    def say_so() -> None:
        begun_s, silent_s = time.perf_counter(), SILENT_S
        while not done.wait(silent_s):
            silent_s = REMINDER_S
            note(news(time.perf_counter() - begun_s))

    speaker = Thread(target=say_so, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        done.set()
        speaker.join()
