"""Likely outputs: merges the most likely entries of the pieces of an output. Rules: arrays only.

The pieces come from devices that each have some of the vocabulary's columns, or of the rows. The most likely entries of a
row are among those of its pieces, and the exponentials of the row come to what those of its pieces come to together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from edgepart.agent.wire.likely_entries import TYPES, LikelyEntries, find_likely
from edgepart.agent.wire.tensors import Value
from edgepart.planner.region import Array, Region, Span, span_size

_Part = tuple[Array, Array, float]
"""Entries of a row: their places in the whole row, their values, and the logarithm of the sum of all exponentials."""


def merge_likely(shape: tuple[int, ...], pieces: Sequence[tuple[Region, Value]], count: int) -> LikelyEntries:
    """Return the `count` most likely entries of each row of an output of this shape from its pieces, which do not overlap
    and cover it. A piece has as many entries of its rows, or is an array. Raises TypeError for an array of another type."""
    kept, rows = min(count, shape[-1]), prod(shape[:-1])
    parts: list[list[_Part]] = [[] for _ in range(rows)]
    for region, piece in pieces:
        if not isinstance(piece, LikelyEntries) and piece.dtype not in TYPES:
            raise TypeError(f"{piece.dtype} are no logits")
        found = piece if isinstance(piece, LikelyEntries) else find_likely(piece, count)
        for n, row in enumerate(_rows_of(region, shape)):
            ids = _places(region.spans[-1], found.ids[n].astype(np.int64))
            parts[row].append((ids, found.values[n], float(found.log_sums[n])))
    merged = [_merge_row(part, kept) for part in parts]
    ids, values, log_sums = (np.array([row[n] for row in merged]) for n in range(3))
    return LikelyEntries(shape, ids.astype(np.uint32), values, log_sums)


def _rows_of(region: Region, shape: tuple[int, ...]) -> Array:
    """The numbers, in an output of this shape, of the region's rows."""
    if prod(shape[:-1]) == 1:
        return np.zeros(1, np.int64)
    along = [_places(one, np.arange(span_size(one))) for one in region.spans[:-1]]
    found: Array = np.ravel_multi_index(np.ix_(*along), shape[:-1]).ravel()
    return found


def _places(one: Span, inside: Array) -> Array:
    """The places along an axis of what lies at the places `inside` a part of it.

    >>> _places(((2, 4), (10, 12)), np.array([0, 1, 2, 3])).tolist()
    [2, 3, 10, 11]
    """
    if len(one) == 1:
        return inside + one[0][0]
    starts, stops = np.array(one).T
    before = np.cumsum(stops - starts) - (stops - starts)
    interval = np.searchsorted(before, inside, side="right") - 1
    found: Array = inside - before[interval] + starts[interval]
    return found


def _merge_row(parts: Sequence[_Part], count: int) -> _Part:
    ids, values = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    order = np.lexsort((ids, -values))[:count]
    with np.errstate(invalid="ignore"):  # NaN and minus infinity are among what pieces come to.
        log_sum = float(np.logaddexp.reduce([log_sum for _, _, log_sum in parts]))
    return ids[order], values[order], log_sum
