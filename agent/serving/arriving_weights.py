"""Arriving weights: how many bytes of a plan's weights are on this device, told now and then. Rules, without I/O; the clock
is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from edgepart.planner.plans.plan import Program, WeightRef

TELL_S = 0.5
"""The least time between two figures, in seconds. With less, people see smoother bars, and the leader gets more reports."""

Arrived = Callable[[str, int], None]
"""(digest, bytes): so many bytes of that weight are on the disk."""


def ignore_arrival(digest: str, nbytes: int) -> None:
    """Takes the arrival of a weight that nobody counts."""


def weights_of(programs: Iterable[Program]) -> list[WeightRef]:
    """The weights of all segments of these programs."""
    return [ref for program in programs for segment in program.segments for ref in segment.weights]


class ArrivingWeights:
    """The weights that one plan needs on this device."""

    def __init__(
        self, refs: Iterable[WeightRef], tell: Callable[[int, int], None], clock: Callable[[], float]
    ) -> None:
        """Tells at once that none of them is known to be here; nothing if there are none. `tell` is called with the bytes
        that are here and those that are needed."""
        self._needed = {ref.digest: ref.nbytes for ref in refs}
        self._needed_bytes = sum(self._needed.values())
        self._here: dict[str, int] = {}
        self._here_bytes = 0
        self._tell = tell
        self._clock = clock
        self._told_at = -math.inf
        self._tell_now()

    def note(self, digest: str, nbytes: int) -> None:
        """Note how much of a weight is here, and tell the sum if it is time to, or if all is here."""
        if digest not in self._needed:
            return
        self._here_bytes += nbytes - self._here.get(digest, 0)
        self._here[digest] = nbytes
        if self._here_bytes == self._needed_bytes or self._clock() - self._told_at >= TELL_S:
            self._tell_now()

    def _tell_now(self) -> None:
        if self._needed_bytes:
            self._told_at = self._clock()
            self._tell(self._here_bytes, self._needed_bytes)
