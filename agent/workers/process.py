"""Worker process: starts one process of a worker, talks to it and ends it. Door: a process, sockets, /proc."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

from edgepart.agent.host import log_format
from edgepart.agent.host.child_process import deaf
from edgepart.agent.host.system import own_bytes
from edgepart.agent.workers import orders
from edgepart.agent.workers.channel import Channel
from edgepart.agent.workers.death import Death
from edgepart.agent.workers.heap import ask_for_huge_pages
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)


class WorkerEnded(Exception):
    """The process is gone, or its end of a connection is closed."""

    def __init__(self, process: WorkerProcess) -> None:
        super().__init__("the worker ended")
        self.process = process


class WorkerProcess:
    """A started worker process. Thread-safe: calls of `ask` wait for each other, and so do calls of `exchange`."""

    def __init__(
        self,
        name: str,
        settings: orders.WorkerSettings,
        memory: int,
        ended: Callable[[WorkerProcess], object],
    ) -> None:
        """Start the process; it can be used after `await_ready`. `memory` is the file descriptor of the shared memory.
        `ended` is called, in a thread of its own, when the process has ended. Raises Unavailable if it cannot be
        started."""
        self._why = ""
        self._telling, self._asking, self._exchanging = threading.Lock(), threading.Lock(), threading.Lock()
        try:
            # Only the process may keep `theirs` open, so that its death ends our reading.
            with ExitStack() as ours, ExitStack() as theirs:
                pairs = [socket.socketpair() for _ in range(2)]
                for our, their in pairs:
                    ours.enter_context(our)
                    theirs.enter_context(their)
                given = *(their.fileno() for _, their in pairs), memory
                command = [sys.executable, "-m", "edgepart.agent.workers.worker", *map(str, given), name]
                environment = ask_for_huge_pages(os.environ)
                with deaf():
                    self._process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, pass_fds=given, env=environment
                    )
                ours.pop_all()
        except OSError as error:
            raise Unavailable(f"no worker process can be started: {error.strerror}") from error
        (told, _), (runs, _) = pairs
        self._told: Connection[Any, Any] = Connection(told.detach())
        self._runs = Channel(runs)
        self._ended = ended
        self._send((settings, log_format.settings()))

    def await_ready(self) -> None:
        """Wait until the process takes orders. Raises Unavailable if it ended before."""
        try:
            orders.answer_from_bytes(self._told.recv_bytes())
        except (EOFError, OSError) as error:
            death = self.death()
            self._told.close()
            self._runs.close()
            raise Unavailable(f"a worker process {death} before it could work") from error
        waiting = threading.Thread(target=self._wait, args=[self._ended], name="edgepart-worker", daemon=True)
        waiting.start()
        # It refers to the supervisor, which refers to this: neither would go before a garbage collection.
        del self._ended

    def ask(self, order: orders.Order) -> tuple[Any, ...]:
        """Send an order and return its answer. Raises WorkerEnded."""
        self.tell(order)
        try:
            with self._asking:
                return orders.answer_from_bytes(self._told.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerEnded(self) from error

    def tell(self, order: orders.Order) -> None:
        """Send an order that is not answered. Nothing happens if the process is gone, which `ended` reports."""
        self._send(order)

    def exchange(self, message: bytes) -> tuple[Any, ...]:
        """Send a run's message and return its answer. Raises WorkerEnded."""
        try:
            with self._exchanging:
                self._runs.send(message)
                return orders.answer_from_bytes(self._runs.receive())
        except (EOFError, OSError) as error:
            raise WorkerEnded(self) from error

    def kill(self, why: str) -> None:
        """End the process. If it has ended already, `why` is not kept as the reason."""
        if self._process.poll() is None:
            self._why = why
            self._process.kill()

    def kill_later(self, seconds: float, find_reason: Callable[[], str]) -> threading.Timer:
        """End the process after so many seconds, unless `find_reason`, which a thread of its own then calls, returns
        ""."""

        def end() -> None:
            if why := find_reason():
                self.kill(why)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        return timer

    def death(self) -> Death:
        """The way in which the process ended. A process that only closed its connections is ended after a second."""
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.kill("it closed its connections")
        return Death(self._process.wait(), self._why)

    @property
    def pid(self) -> int:
        return self._process.pid

    def own_bytes(self) -> int:
        """Bytes of memory that the process shares with no other; 0 if it has ended or the system does not tell."""
        return own_bytes(self._process.pid)

    def _send(self, message: object) -> None:
        try:
            with self._telling:
                self._told.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            log.debug("a worker was not told: %s", error)

    def _wait(self, ended: Callable[[WorkerProcess], object]) -> None:
        self._process.wait()
        ended(self)
        with self._telling, self._asking, self._exchanging:
            self._told.close()
            self._runs.close()
