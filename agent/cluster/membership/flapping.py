"""Flapping: how often each device was lost lately, and for how long plans do without it. Rules; time is an
argument.

A device that is lost again and again stays a member, but plans do without it for a while, its quarantine,
which doubles with each loss: moving to a plan with it has a cost, and the next loss would end that plan.
After a calm time its losses are forgotten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FlapTiming:
    """The times of a quarantine. Longer times avoid more moves, but for longer plans do without a device that
    may have become reliable."""

    free: int = 2
    """Losses in a row without consequence, because boxes are restarted."""
    calm_s: float = 120.0
    """A device that was not lost for this long, its quarantine not counted, starts anew with no losses."""
    first_s: float = 10.0
    """The first quarantine, counted from the device's return; each further loss doubles it."""
    most_s: float = 300.0
    """The longest quarantine, so that a device that has become reliable is used again."""
    keep: int = 1024
    """The most devices that are remembered; beyond that, the one that was lost longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class LossRecord:
    losses: int
    until: float
    """The end of the quarantine as far as it is known; the time of the last loss if there is none."""
    span_s: float
    away: bool = True
    """Whether the device has not come back since its last loss."""


class LossHistory:
    """The losses of other devices that one device has seen."""

    def __init__(self, timing: FlapTiming | None = None) -> None:
        self._timing = timing or FlapTiming()
        self._records: dict[str, LossRecord] = {}
        self._ends: list[float] = []
        """The ends of all quarantines, sorted."""

    def __bool__(self) -> bool:
        """Whether any loss is remembered."""
        return bool(self._records)

    def lost(self, node: str, now: float) -> None:
        """Note a certain loss of the device: another member has confirmed it, or the device has a new
        process."""
        timing, known = self._timing, self._records.pop(node, None)
        calm = known is None or now >= known.until + timing.calm_s
        losses = 1 if known is None or calm else known.losses + 1
        doublings = losses - timing.free - 1
        span_s = min(timing.first_s * 2 ** min(doublings, 30), timing.most_s) if doublings >= 0 else 0.0
        self._records[node] = LossRecord(losses, now + span_s, span_s)
        if len(self._records) > timing.keep:
            del self._records[next(iter(self._records))]
        self._sort_ends()

    def back(self, node: str, now: float) -> None:
        """Note that the device is a member again. Its quarantine begins now, however long it was away:
        otherwise the quarantine of a device that starts slowly would end before anybody could plan with
        it."""
        known = self._records.get(node)
        if known is None or not known.away:
            return
        calm = now >= known.until + self._timing.calm_s
        until = now + known.span_s if known.span_s and not calm else known.until
        self._records[node] = replace(known, until=until, away=False)
        self._sort_ends()

    def _sort_ends(self) -> None:
        self._ends = sorted(record.until for record in self._records.values() if record.span_s)

    def why(self, node: str, now: float) -> str:
        """Why plans do without the device now; "" if they need not."""
        record = self._records.get(node)
        if record is None or now >= record.until:
            return ""
        return f"lost {record.losses} times lately: plans do without it for {record.span_s:.0f} s"

    def wake_at(self, now: float) -> float:
        """The end of the next quarantine; inf if there is none."""
        ends = self._ends
        while ends and ends[0] <= now:
            ends.pop(0)
        return ends[0] if ends else math.inf
