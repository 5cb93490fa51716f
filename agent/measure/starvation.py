"""Starvation: whether this device's threads get the CPU when they need it. Rules, without I/O; time is an argument.

A device that others load is slower for as long as that lasts, and no slower device. What is measured meanwhile would have
plans made for a moment: it does not count before the load has lasted. Then it is how this device is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edgepart.agent.wire.control import Starved

ThreadTimes = Mapping[int, tuple[int, int]]
"""By thread, nanoseconds that it was on a CPU, and that it waited for one, since it began."""


@dataclass(frozen=True, slots=True)
class StarvationTiming:
    """What counts as starved, and for how long it does."""

    share: float = 0.25
    """Of the time that threads could have run, what they waited: from here on what they do takes a third longer than it
    needs, which is three steps of drift.py. Agents that serve without company wait a tenth to a sixth, for each other."""
    least: float = 0.02
    """Of the time that passed, what all threads together have to have waited: an idle agent's few milliseconds say
    nothing."""
    calm_s: float = 10.0
    """Without being starved for so long, it is over. Shorter takes a load with pauses for many, and never for a lasting
    one."""
    lasting_s: float = 180.0
    """From then on measurements count again, and plans are made for it. Shorter moves work, there and back, for updates,
    backups and compilers, which take a minute or two; longer leaves it for as long with who is slow."""
    news: float = 0.1
    """A share that moved by less is none."""
    looks: int = 5
    """The share that people are told is that of so many."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1 or not self.calm_s < self.lasting_s:
            raise ValueError("timing: 0 < share < 1 and calm_s < lasting_s must hold")


class Wait(NamedTuple):
    """What threads did between two readings."""

    ran_s: float
    waited_s: float

    @property
    def share(self) -> float:
        """What they waited, of the time that they could have run."""
        return self.waited_s / (self.ran_s + self.waited_s) if self.waited_s > 0 else 0.0


def between(before: ThreadTimes, now: ThreadTimes) -> Wait:
    """Threads that ended meanwhile are not known any more; those that began have done all of theirs.

    >>> between({1: (5, 5)}, {1: (1_000_000_005, 5), 2: (0, 3_000_000_000)}).share
    0.75
    """
    ran = waited = 0
    for thread, (on_cpu, waiting) in now.items():
        was_on_cpu, was_waiting = before.get(thread, (0, 0))
        ran += max(on_cpu - was_on_cpu, 0)
        waited += max(waiting - was_waiting, 0)
    return Wait(ran / 1e9, waited / 1e9)


def in_words(starved: Starved) -> str:
    """For people; "" where there is nothing to say.

    >>> in_words(Starved(0.62)), in_words(Starved())
    ('busy: its threads waited 62 % of the time for a CPU', '')
    """
    if not starved.share:
        return ""
    for_long = ", for minutes now" if starved.lasting else ""
    return f"busy: its threads waited {100 * starved.share:.0f} % of the time for a CPU{for_long}"


class Starvation:
    """This device's, from looks at its threads."""

    def __init__(self, now: float, timing: StarvationTiming | None = None) -> None:
        self._timing = timing or StarvationTiming()
        self._looked_at = now
        self._began: float | None = None
        """When what goes on began; None where nothing does."""
        self._last = now
        """When it was starved last."""
        self._waits: deque[Wait] = deque(maxlen=self._timing.looks)
        self.spoils = False
        """Whether what was measured since the last look but one does not count."""
        self.told = Starved()
        """What others are to know."""

    def is_starved(self, wait: Wait, passed_s: float) -> bool:
        """Whether threads that did that in `passed_s` did not get the CPU."""
        return wait.share >= self._timing.share and wait.waited_s >= self._timing.least * passed_s

    @property
    def lasting(self) -> bool:
        """Whether it is starved, and has been for so long that this is how the device is."""
        return self._began is not None and self._looked_at >= self._began + self._timing.lasting_s

    def look(self, wait: Wait, now: float) -> None:
        """What threads did since the last look."""
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
