"""CPU wait: reads how long the threads of this agent and of its workers waited for a CPU. Door: the clock, the system;
starvation.py decides what follows from it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from edgepart.agent.cluster.state.events import StarvationSeen
from edgepart.agent.host.system import thread_times
from edgepart.agent.measure.starvation import Starvation, ThreadTimes, wait_between


class CpuWaitWatch:
    """Reads the waiting times of threads. Thread-safe, but only one thread may call `look`."""

    def __init__(
        self,
        workers: Callable[[], Iterable[int]],
        post: Callable[[StarvationSeen], None],
        times: Callable[[Iterable[int]], ThreadTimes] = thread_times,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workers` returns the ids of the worker processes. `post` is called when the device's starvation changes."""
        self._workers = workers
        self._post = post
        self._times = times
        self._clock = clock
        self._before = self.read()
        self._starvation = Starvation(clock())

    def read(self) -> ThreadTimes:
        """The times of all threads now, for `spoilt_since`."""
        return self._times((os.getpid(), *self._workers()))

    def look(self) -> bool:
        """Look at the threads. Returns whether measurements taken since the last look do not count."""
        now, told = self.read(), self._starvation.told
        self._starvation.look(wait_between(self._before, now), self._clock())
        self._before = now
        if self._starvation.told != told:
            self._post(StarvationSeen(self._starvation.told))
        return self._starvation.spoils

    @property
    def spoils(self) -> bool:
        """The result of the last `look`; False before the first."""
        return self._starvation.spoils

    def spoilt_since(self, before: ThreadTimes, passed_s: float) -> bool:
        """Whether measurements do not count that were taken since `read` returned `before`, `passed_s` seconds ago."""
        starved = self._starvation.is_starved(wait_between(before, self.read()), passed_s)
        return starved and not self._starvation.lasting
