"""Child processes: starts a process that serves the agent through a pipe and ends with the agent. Door: processes.

The standard library's processes would keep another process beside the agent, which tracks resources that no child here
has, and takes 13 MB.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, Pipe
from threading import Thread
from typing import Any

from edgepart.agent.host import log_format

BESIDE_NICENESS = 5
"""How much lower the priority of processes is that work for a deployment before it serves (reading the model, cutting its
weights, its answer for comparison). They slow requests down little, and still finish beside programs that compute all the
time: beside one of these they get a quarter of a processor, and with 10 they got a tenth."""


class ChildProcess:
    """A process that was started. Thread-safe."""

    def __init__(self, process: subprocess.Popen[bytes], leash: int) -> None:
        """`leash` is the file descriptor of a pipe's end that the agent holds open as long as it and the process live."""
        self._process = process
        self._leash = leash
        self._waiting = Thread(target=self._wait, name="edgepart-child", daemon=True)
        self._waiting.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """The exit status, or minus the signal that ended the process; None while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        """End the process, if it runs; `join` waits until it is gone."""
        self._process.kill()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the process has ended, for `timeout_s` seconds at most."""
        self._waiting.join(timeout_s)

    def _wait(self) -> None:
        self._process.wait()
        os.close(self._leash)


def start_child(
    work: Callable[..., None], *args: object, name: str
) -> tuple[ChildProcess, Connection[Any, Any]]:
    """Start a process that runs `work(its end of the pipe, *args)`; return it and our end. `work` is a function of a
    module; it and the arguments are pickled. Raises OSError if that fails.

    The process is a fresh interpreter: the agent has threads, and a fork of a process with threads may hang.
    """
    with ExitStack() as theirs:  # Then only the child holds them, so our reading ends when it dies.
        ours, pipe = Pipe()
        held, leash = os.pipe()
        theirs.enter_context(pipe)
        theirs.callback(os.close, held)
        given = pipe.fileno(), held
        command = [sys.executable, "-m", __name__, *map(str, given), name]
        try:
            with deaf():
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=given)
        except OSError:
            os.close(leash)
            raise
    child = ChildProcess(process, leash)
    ours.send((log_format.settings(), name, work, args))
    return child, ours


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


def _end_with_parent(held: int) -> None:
    os.read(held, 1)  # until the agent, which writes nothing, is gone
    os._exit(1)


def main() -> None:
    """Do the work, in the child. The child ends with the agent even in the middle of its work, which nobody
    needs then. Its arguments are two file descriptors (its end of the pipe, the leash), and its name for those who list
    processes."""
    descriptor, held = map(int, sys.argv[1:3])
    Thread(target=_end_with_parent, args=[held], name="parent", daemon=True).start()
    pipe: Connection[Any, Any]
    with Connection(descriptor) as pipe:
        logs, name, work, args = pipe.recv()
        logs.apply(name.removeprefix("edgepart-"))
        work(pipe, *args)


if __name__ == "__main__":
    main()
