"""Counters: totals of what this device has computed, sent and received. Facts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from edgepart.agent.wire.reduced_precision import RoundingTally

RECENT_RUNS = 31
"""The number of a segment's last runs whose times are kept: enough for a median that a few disturbed runs do not move."""


@dataclass(slots=True)
class SegmentTime:
    """The times of one segment's runs on this device, in seconds."""

    runs: int = 0
    total_s: float = 0.0
    least_s: float = float("inf")
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_RUNS))
    """The times of the last runs, oldest first."""


@dataclass(slots=True)
class Counters:
    """Totals since the executor was made; those of a deployment, since it was last computed here after a time without."""

    requests_done: int = 0
    requests_failed: int = 0
    segments: dict[tuple[str, str], SegmentTime] = field(default_factory=dict)
    """Run times, by deployment and `Segment.timed_as`."""
    sent_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes sent, by node id."""
    received_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes received, by node id; "" if the caller of `deliver` did not name the source."""
    rounding: dict[str, RoundingTally] = field(default_factory=dict)
    """Counts of rounded pieces, by deployment."""

    def copy(self) -> Counters:
        """These totals as they are now."""
        return Counters(
            self.requests_done,
            self.requests_failed,
            {key: replace(times, recent_s=times.recent_s.copy()) for key, times in self.segments.items()},
            dict(self.sent_bytes),
            dict(self.received_bytes),
            {name: replace(tally) for name, tally in self.rounding.items()},
        )

    def forget(self, deployment: str) -> None:
        """Drop what was counted of a deployment, which is not computed here any more."""
        for key in [key for key in self.segments if key[0] == deployment]:
            del self.segments[key]
        self.rounding.pop(deployment, None)
