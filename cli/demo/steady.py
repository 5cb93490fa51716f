"""Whether answers have become equally quick, so that the demo may show how long one takes. A rule."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

TIMED = 5
"""The number of answers of which the median is shown."""
SPREAD = 0.07
"""By how much the slowest of them may be slower than the quickest, as a share of the median. With less, a machine that does
other work is never steady; with more, boxes are timed while they still load plans."""


def is_steady(took_s: Sequence[float]) -> bool:
    """Whether the last TIMED answers took about equally long. The first answer of all does not count: it opens connections.

    >>> is_steady([2.0, 1.04, 1.0, 1.02, 1.05, 1.0]), is_steady([2.0, 1.0, 1.3, 1.0, 1.0, 1.0])
    (True, False)
    """
    last = took_s[1:][-TIMED:]
    return len(last) == TIMED and max(last) - min(last) <= SPREAD * median(last)
