"""Supervisor: keeps a process for one worker: starts it when it is needed, and again when it has ended. Door: processes,
threads.

It does not know what a process is for. Who uses it says how a process that was just started gets its programs, and hears
how each one ended.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection

from edgepart.agent.workers import orders
from edgepart.agent.workers.death import Death
from edgepart.agent.workers.process import WorkerProcess
from edgepart.agent.workers.shared_memory import SharedMemory
from edgepart.planner.errors import EdgepartError, Unavailable

log = logging.getLogger(__name__)

JOIN_S = 10.0
"""The most seconds to wait, when the agent stops, for a worker that was just being started and has been killed."""
NOT_COMPUTED_HERE = "this deployment is not computed here any more"
RETRY_S = (0.5, 5.0)
"""The first and the longest pause before a worker that could not be started is tried again, in seconds."""


class Supervisor:
    """The process of one worker, and those that follow it. Thread-safe."""

    def __init__(
        self,
        name: str,
        settings: orders.WorkerSettings,
        memory: SharedMemory,
        restore: Callable[[WorkerProcess], bool],
        ended: Callable[[Death], None],
    ) -> None:
        """`restore` loads all programs into a process that was just started, and returns whether the process survived
        that; whoever needs the process gets what it raises. `ended` is called before the next process is started."""
        self.name = name
        self.deaths = 0
        """Number of this worker's processes that ended without being told to."""
        self.ordering = threading.RLock()
        """Guards the exchange of orders and the start of a process."""
        self._settings = settings
        self._memory = memory
        self._restore = restore
        self._ended = ended
        self._state = threading.Lock()
        """Guards the attributes below. Threads hold it for moments only."""
        self._process: WorkerProcess | None = None
        self._starting: WorkerProcess | None = None
        """The process that is being started and loads the programs of the last one again."""
        self._closed = threading.Event()
        self._closing: tuple[WorkerProcess, ...] = ()

    @property
    def process(self) -> WorkerProcess | None:
        """The process; None if there is none now."""
        with self._state:
            return self._process

    @property
    def processes(self) -> Collection[WorkerProcess]:
        """The process, or the one that is being started and may have programs already."""
        with self._state:
            return {one for one in (self._process, self._starting) if one is not None}

    def ensure(self) -> WorkerProcess:
        """The process; if there is none, it is started and loads all programs. The caller holds `ordering`. Raises
        Unavailable if it cannot be started."""
        while True:
            with self._state:
                if self._closed.is_set():
                    raise Unavailable(f"{self.name} is not computed here any more")
                if self._process is not None:
                    return self._process
                # A descriptor of its own, as the memory may be closed meanwhile.
                memory = os.dup(self._memory.file)
            try:
                process = WorkerProcess(self.name, self._settings, memory, self.bury)
            finally:
                os.close(memory)
            with self._state:
                self._starting = process
            try:
                if self._closed.is_set():
                    process.kill(NOT_COMPUTED_HERE)
                process.await_ready()
                loaded = self._restore(process)
                with self._state:
                    if loaded and not self._closed.is_set():
                        self._process = process
                        return process
            finally:
                with self._state:
                    self._starting = None
            process.kill(NOT_COMPUTED_HERE)
            process.death()

    def bury(self, process: WorkerProcess) -> Death:
        """Handle the end of a process: start another one, in a thread. Returns how it ended."""
        death = process.death()
        with self._state:
            mine = self._process is process
            if mine:
                self._process = None
        if mine and not self._closed.is_set():
            self._ended(death)
            self.deaths += not death.ordered
            log.log(
                logging.INFO if death.ordered else logging.ERROR,
                "worker of %s %s; it is started again",
                self.name,
                death,
            )
            threading.Thread(target=self._revive, name="edgepart-revive", daemon=True).start()
        return death

    def _revive(self) -> None:
        wait_s = RETRY_S[0]
        while not self._closed.is_set():
            try:
                with self.ordering:
                    self.ensure()
                return
            except EdgepartError as error:
                log.warning("no worker for %s: %s; trying again in %g s", self.name, error, wait_s)
            self._closed.wait(wait_s)
            wait_s = min(2 * wait_s, RETRY_S[1])

    def close(self) -> None:
        """End the process, even during a run, and start no other one."""
        with self._state:
            self._closed.set()
            self._closing = tuple(one for one in (self._process, self._starting) if one is not None)
            self._process = None
        for process in self._closing:
            process.kill(NOT_COMPUTED_HERE)

    def join(self) -> None:
        """Wait, after `close`, until the process is gone, even if it was just being started."""
        for process in self._closing:
            process.death()
        if self.ordering.acquire(timeout=JOIN_S):
            self.ordering.release()
