"""Starving: looks now and then at how long this agent's threads, and those of its workers, waited for a CPU. Door: the
clock, the system; what follows is starvation.py's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from edgepart.agent.cluster.state.events import StarvationSeen
from edgepart.agent.host.system import thread_times
from edgepart.agent.measure.starvation import Starvation, ThreadTimes, between


class Starving:
    """For any thread; `look` is for one alone."""

    def __init__(
        self,
        workers: Callable[[], Iterable[int]],
        post: Callable[[StarvationSeen], None],
        times: Callable[[Iterable[int]], ThreadTimes] = thread_times,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workers`: their processes now. `post` is told of news."""
        self._workers = workers
        self._post = post
        self._times = times
        self._clock = clock
        self._before = self.read()
        self._starvation = Starvation(clock())

    def read(self) -> ThreadTimes:
        """For `spoilt_since`."""
        return self._times((os.getpid(), *self._workers()))

    def look(self) -> bool:
        """Whether what was measured since the last look does not count."""
        now, told = self.read(), self._starvation.told
        self._starvation.look(between(self._before, now), self._clock())
        self._before = now
        if self._starvation.told != told:
            self._post(StarvationSeen(self._starvation.told))
        return self._starvation.spoils

    @property
    def spoils(self) -> bool:
        """What the last look found."""
        return self._starvation.spoils

    def spoilt_since(self, before: ThreadTimes, passed_s: float) -> bool:
        """Whether what was measured in that time, since `read` gave `before`, does not count."""
        starved = self._starvation.is_starved(between(before, self.read()), passed_s)
        return starved and not self._starvation.lasting
