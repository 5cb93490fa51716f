"""Apart: pairs of members that have lost each other while others still reach both. Rules, without I/O.

Right after a link breaks nobody knows whether a device died; that is settled in tenths of a second. What lasts longer is
a cut between two: a plan that needs both cannot answer any more, though all of its devices are in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

Pair = tuple[str, str]

LASTING_S = 1.0
"""Less moves away from plans for a box that died, or for a link that is back at once; more makes requests wait longer."""


class Apart:
    """As one leader sees it."""

    def __init__(self) -> None:
        self._since: dict[Pair, float] = {}

    def look(self, broken: Iterable[Pair], now: float) -> frozenset[Pair]:
        """Those that have been broken for long enough. `broken`: all that are."""
        self._since = {pair: self._since.get(pair, now) for pair in broken}
        return frozenset(pair for pair, since in self._since.items() if now >= since + LASTING_S)

    def wake_at(self, now: float) -> float:
        """When another one may have lasted."""
        return min(
            (at for since in self._since.values() if (at := since + LASTING_S) > now), default=math.inf
        )
