"""Keyboard: single keys, from a terminal that shows none of them meanwhile. Door: the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def listening(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call `pressed` in the running event loop with each key, and leave the terminal as it was. Ctrl-C still interrupts.
    Does nothing where the input is no terminal."""
    if not sys.stdin.isatty():
        yield
        return
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if not (keys := os.read(file, 64)):
            loop.remove_reader(file)  # The terminal is gone.
        for key in keys.decode(errors="replace"):
            pressed(key)

    before = termios.tcgetattr(file)
    tty.setcbreak(file, termios.TCSADRAIN)
    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSAFLUSH, before)
