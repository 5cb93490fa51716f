"""Starvation: decides whether this device's threads get the CPU when they need it. Rules, without I/O; time is an argument.

Load from other programs makes a device slower only while it lasts. Plans must not be made for such a moment, so
measurements taken meanwhile do not count until the load has lasted for long. Then the device is taken to be that slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edgepart.agent.wire.control import Starved

ThreadTimes = Mapping[int, tuple[int, int]]
"""Nanoseconds that each thread was on a CPU, and that it waited for one, since it began, by thread id."""


@dataclass(frozen=True, slots=True)
class StarvationTiming:
    """The thresholds by which a device counts as starved, and its starvation as over or as lasting."""

    share: float = 0.25
    """The least waiting time of starved threads, as a share of the time in which they could have run. From this share on,
    their work takes a third longer than it needs, which is three steps of drift.py. In agents that serve on an otherwise
    idle device, threads wait a tenth to a sixth of the time for each other."""
    least: float = 0.02
    """The least waiting time of all starved threads together, as a part of the time passed: the few milliseconds of an idle
    agent say nothing."""
    calm_s: float = 10.0
    """Seconds without starvation after which it is over. With a shorter time, a load with pauses counts as many loads and
    never as a lasting one."""
    lasting_s: float = 180.0
    """Seconds after which measurements count again, and plans are made for the load. A shorter time moves work, there and
    back, for updates, backups and compilers, which take a minute or two; a longer one leaves work on a slow device for that
    long."""
    news: float = 0.1
    """The least change of the share for which it is told again."""
    looks: int = 5
    """Number of the last looks from which the told share is computed."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1 or not self.calm_s < self.lasting_s:
            raise ValueError("timing: 0 < share < 1 and calm_s < lasting_s must hold")


class Wait(NamedTuple):
    """Seconds that all threads together ran, and waited for a CPU, between two readings."""

    ran_s: float
    waited_s: float

    @property
    def share(self) -> float:
        """The waiting time as a part of the time in which the threads could have run."""
        return self.waited_s / (self.ran_s + self.waited_s) if self.waited_s > 0 else 0.0


def wait_between(before: ThreadTimes, now: ThreadTimes) -> Wait:
    """The running and waiting between two readings. Threads that ended meanwhile do not count; those that began count in
    full.

    >>> wait_between({1: (5, 5)}, {1: (1_000_000_005, 5), 2: (0, 3_000_000_000)}).share
    0.75
    """
    ran = waited = 0
    for thread, (on_cpu, waiting) in now.items():
        was_on_cpu, was_waiting = before.get(thread, (0, 0))
        ran += max(on_cpu - was_on_cpu, 0)
        waited += max(waiting - was_waiting, 0)
    return Wait(ran / 1e9, waited / 1e9)


def describe_starvation(starved: Starved) -> str:
    """A device's starvation in words; "" if it is not starved.

    >>> describe_starvation(Starved(0.62)), describe_starvation(Starved())
    ('busy: its threads waited 62 % of the time for a CPU', '')
    """
    if not starved.share:
        return ""
    for_long = ", for minutes now" if starved.lasting else ""
    return f"busy: its threads waited {100 * starved.share:.0f} % of the time for a CPU{for_long}"


class Starvation:
    """The starvation of this device, which follows from looks at its threads."""

    def __init__(self, now: float, timing: StarvationTiming | None = None) -> None:
        self._timing = timing or StarvationTiming()
        self._looked_at = now
        self._began: float | None = None
        """The time at which the present starvation began; None if there is none."""
        self._last = now
        """The time at which the device was last starved."""
        self._waits: deque[Wait] = deque(maxlen=self._timing.looks)
        self.spoils = False
        """Whether measurements taken since the look before the last one do not count."""
        self.told = Starved()
        """The starvation that the other members must be told."""

    def is_starved(self, wait: Wait, passed_s: float) -> bool:
        """Whether threads that waited like this in `passed_s` seconds were starved of the CPU."""
        return wait.share >= self._timing.share and wait.waited_s >= self._timing.least * passed_s

    @property
    def lasting(self) -> bool:
        """Whether the device has been starved for so long that measurements count again."""
        return self._began is not None and self._looked_at >= self._began + self._timing.lasting_s

    def look(self, wait: Wait, now: float) -> None:
        """Take how long the threads ran and waited since the last look."""
        passed_s, before = now - self._looked_at, self._looked_at
        self._looked_at = now
        self._waits.append(wait)
        starved = self.is_starved(wait, passed_s)
        if starved:
            self._began = before if self._began is None else self._began
            self._last = now
        elif now >= self._last + self._timing.calm_s:
            self._began = None
        self.spoils = starved and not self.lasting
        self._tell(starved)

    def _tell(self, starved: bool) -> None:
        if self._began is None:
            self.told = Starved()
        elif starved:
            share = Wait(*map(sum, zip(*self._waits, strict=True))).share
            moved = abs(share - self.told.share) >= self._timing.news
            if moved or not self.told.share or self.told.lasting != self.lasting:
                self.told = Starved(share, self.lasting)
