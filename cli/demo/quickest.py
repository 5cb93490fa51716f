"""How long an answer takes, of answers that came one after the other. A rule."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

TIMED = 5
"""The number of answers of which the median is shown."""


def quickest_s(took_s: Sequence[float]) -> float:
    """The smallest median of TIMED answers in a row; the median of all if there are fewer. The first answer does not count:
    it opens connections.

    >>> quickest_s([9.0, 3.0, 1.2, 1.0, 1.1, 1.0, 3.0]), quickest_s([9.0, 2.0, 1.0, 3.0])
    (1.1, 2.0)
    """
    counted = took_s[1:]
    return min(median(counted[n : n + TIMED]) for n in range(max(1, len(counted) - TIMED + 1)))
