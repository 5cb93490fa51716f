"""Devices that come and go: how often each was lost lately, and how long plans do without it. Rules; time is an argument.

One that is lost again and again stays a member, and is not planned with for a while that doubles with each loss: every plan
with it costs a move, and would be lost with it. After calm all is forgotten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FlapTiming:
    """Longer waits spare more moves, and do without a device for longer that may have become reliable."""

    free: int = 2
    """Losses in a row that have no consequence: boxes are restarted."""
    calm_s: float = 120.0
    """A device that was not lost for so long, its quarantine not counted, has a new start."""
    first_s: float = 10.0
    """The first quarantine, from its return on; each further loss doubles it."""
    most_s: float = 300.0
    keep: int = 1024
    """Devices that are remembered at most; of more, the one that was lost longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class LossRecord:
    losses: int
    until: float
    """End of its quarantine, as far as it is known; the time of its last loss where it has none."""
    span_s: float
    away: bool = True
    """Whether it has not come back since."""


class Flapping:
    """What one device has seen of the others' losses."""

    def __init__(self, timing: FlapTiming | None = None) -> None:
        self._timing = timing or FlapTiming()
        self._records: dict[str, LossRecord] = {}
        self._ends: list[float] = []
        """Of quarantines, sorted."""

    def __bool__(self) -> bool:
        """Whether any was lost lately."""
        return bool(self._records)

    def lost(self, node: str, now: float) -> None:
        """It was surely lost: another member said so too, or its process is another one now."""
        timing, known = self._timing, self._records.pop(node, None)
        calm = known is None or now >= known.until + timing.calm_s
        losses = 1 if known is None or calm else known.losses + 1
        doublings = losses - timing.free - 1
        span_s = min(timing.first_s * 2 ** min(doublings, 30), timing.most_s) if doublings >= 0 else 0.0
        self._records[node] = LossRecord(losses, now + span_s, span_s)
        if len(self._records) > timing.keep:
            del self._records[next(iter(self._records))]
        self._sort()

    def back(self, node: str, now: float) -> None:
        """It is a member again. From now on plans do without it, however long it was away: one that starts slowly would
        else have served its quarantine before anybody could plan with it."""
        known = self._records.get(node)
        if known is None or not known.away:
            return
        calm = now >= known.until + self._timing.calm_s
        until = now + known.span_s if known.span_s and not calm else known.until
        self._records[node] = replace(known, until=until, away=False)
        self._sort()

    def _sort(self) -> None:
        self._ends = sorted(record.until for record in self._records.values() if record.span_s)

    def why(self, node: str, now: float) -> str:
        """Why plans do without it now; "" where they need not."""
        record = self._records.get(node)
        if record is None or now >= record.until:
            return ""
        return f"lost {record.losses} times lately: plans do without it for {record.span_s:.0f} s"

    def wake_at(self, now: float) -> float:
        """When the next quarantine ends; inf where there is none."""
        ends = self._ends
        while ends and ends[0] <= now:
            ends.pop(0)
        return ends[0] if ends else math.inf
