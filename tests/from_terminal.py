"""The command line as a terminal starts it, for tests that press Ctrl-C.

What a terminal does is done in the new process itself, and not between fork and exec: other tests load gRPC here, which
starts threads again in a forked process. While subprocess closes all files there, these end it."""

from __future__ import annotations

import sys

_SIGNAL = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Whoever runs the tests in the background ignores the signal, and processes inherit that."""
_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
_RUN = "import runpy; runpy.run_module('edgepart', run_name='__main__', alter_sys=True)"


def from_terminal(*arguments: str, controlling: bool = False) -> list[str]:
    """The command that runs `edgepart` with these arguments and heeds Ctrl-C. With `controlling`, the process leads a
    session whose terminal is its stdin."""
    begin = "; ".join([_SIGNAL, *([_TERMINAL] if controlling else []), _RUN])
    return [sys.executable, "-c", begin, *arguments]
