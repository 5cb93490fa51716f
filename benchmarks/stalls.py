"""Detects whether the machine itself stood still during a measurement. Does I/O: a thread, and the clock."""

from __future__ import annotations

import time
from threading import Event, Thread

LOOK_S = 0.02
WORTH_S = 0.25


class Stalls:
    """A thread that measures how long the machine keeps a sleeping process waiting."""

    def __enter__(self) -> Stalls:
        self.longest_s = 0.0
        self.found: list[tuple[float, float]] = []
        """When each stall of more than `WORTH_S` ended, on the monotonic clock, and how long it was."""
        self._over = Event()
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        last = time.monotonic()
        while not self._over.wait(LOOK_S):
            now = time.monotonic()
            late_s, last = now - last - LOOK_S, now
            self.longest_s = max(self.longest_s, late_s)
            if late_s > WORTH_S:
                self.found.append((now, late_s))
