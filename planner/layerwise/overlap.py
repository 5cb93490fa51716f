"""Overlap: count the elements that each of many regions has in common with each of many others, all at once.

Regions are products of spans, and so are their common parts, which are counted axis by axis. time_costs.py and
byte_costs.py turn the counts into what moves. Rules only: numpy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgepart.planner.layerwise.elimination import Table
from edgepart.planner.region import Region, Span


def count_overlaps(ones: Sequence[Region | None], twos: Sequence[Region | None]) -> Table:
    """Elements that each of `ones` has in common with each of `twos`, [one, two]; None is an empty region."""
    found = np.outer([r is not None for r in ones], [r is not None for r in twos]).astype(np.float64)
    rank = next((r.rank for r in (*ones, *twos) if r is not None), 0)
    for axis in range(rank):
        found *= _axis(
            [() if r is None else r.spans[axis] for r in ones],
            [() if r is None else r.spans[axis] for r in twos],
        )
    return found


def _axis(ones: Sequence[Span], twos: Sequence[Span]) -> Table:
    """The number of indices in common along one axis, [one, two]; a single number if all spans are equal."""
    first, second = dict.fromkeys(ones), dict.fromkeys(twos)
    if len(first) == len(second) == 1 and ones[0] == twos[0]:
        return np.full((1, 1), float(sum(i.size for i in ones[0])))
    (a, low_a, high_a), (b, low_b, high_b) = _intervals(first), _intervals(second)
    common = np.minimum(high_a[:, None], high_b) - np.maximum(low_a[:, None], low_b)
    np.maximum(common, 0.0, out=common)
    sums = np.add.reduceat(np.add.reduceat(common, a, axis=0), b, axis=1)
    one, two = ({s: n for n, s in enumerate(spans)} for spans in (first, second))
    found: Table = sums[[one[s] for s in ones]][:, [two[s] for s in twos]]
    return found


def _intervals(spans: Iterable[Span]) -> tuple[list[int], Table, Table]:
    """The place at which each span's intervals begin in the list of all intervals, and the bounds of all
    intervals. An empty span is one interval without length."""
    starts: list[int] = []
    bounds: list[tuple[float, float]] = []
    for one in spans:
        starts.append(len(bounds))
        bounds += [(float(i.start), float(i.stop)) for i in one] or [(0.0, 0.0)]
    low, high = np.array(bounds).T
    return starts, low, high
