"""Likely entries: the most likely entries of logits, which travel in place of the whole vocabulary. Rules: arrays only.

Logits have a number for each token of a vocabulary along their last axis. A gateway that chooses a token mostly needs few
of them, and what the exponentials of all come to. It says in its request how many it wants (`Tensors.likely`); a device
then sends these of a piece. A sender may always send a piece as it is, and does so if that takes hardly more bytes, or if a
number is no number or infinitely large: what follows from those is for whoever sees them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from edgepart.planner.errors import FrameError
from edgepart.planner.region import Array

TYPES = tuple(map(np.dtype, (np.float16, np.float32, np.float64)))
"""The types of pieces that are reduced."""
SUM_ERROR = 1e-5
"""The largest error of a sum of exponentials, relative to it. float32 numbers are added up exactly enough for 4e-6."""
BLOCKS = 8
"""For each entry that is wanted, the number of blocks whose greatest numbers are compared first. With fewer, more numbers
are sorted then; with more, more are compared first."""


@dataclass(frozen=True, eq=False)
class LikelyEntries:
    """The most likely entries of each row of an array. A row lies along the last axis."""

    shape: tuple[int, ...]
    """The shape of the array."""
    ids: Array
    """uint32 [rows, count]: the places of the entries in their row, the most likely one first, equal ones by their places.
    So no other entry of the row comes before the last one of these."""
    values: Array
    """[rows, count]: the entries."""
    log_sums: Array
    """float64 [rows]: the logarithm of the sum of the exponentials of the whole row. NaN if some number of the row is none,
    or infinitely large; the entries then say nothing. Such rows do not travel, and nor do those where all numbers are minus
    infinity."""

    @property
    def count(self) -> int:
        """The number of entries of a row."""
        return int(self.ids.shape[1])

    def row(self, number: int) -> LikelyEntries:
        """One row of the array."""
        ids, values, log_sums = (part[number, None] for part in (self.ids, self.values, self.log_sums))
        return LikelyEntries(self.shape[-1:], ids, values, log_sums)

    @property
    def nbytes(self) -> int:
        return int(self.ids.nbytes + self.values.nbytes + self.log_sums.nbytes)


def check_likely(found: LikelyEntries) -> LikelyEntries:
    """`found`, which a peer sent. Raises FrameError if it cannot be what a peer makes of an array."""
    rows, extent = prod(found.shape[:-1]), found.shape[-1] if found.shape else 0
    if found.values.dtype not in TYPES:
        raise FrameError(f"{found.values.dtype} are no logits")
    if not 0 < found.count <= extent or not len(found.ids) == len(found.log_sums) == rows:
        raise FrameError(f"{found.ids.shape} likely entries are not of shape {found.shape}")
    ids, values = found.ids.astype(np.int64), found.values
    later, sooner = values[:, 1:], values[:, :-1]
    ordered = (later < sooner) | ((later == sooner) & (ids[:, 1:] > ids[:, :-1]))
    if not (np.isfinite(values[:, 0]).all() and np.isfinite(found.log_sums).all() and ordered.all()):
        raise FrameError("likely entries are not in their order, or not numbers")
    places = np.sort(ids, axis=1)
    if (places[:, -1] >= extent).any() or (places[:, 1:] == places[:, :-1]).any():
        raise FrameError(f"likely entries are not each in a place of its own of {extent}")
    return found


def keep_likely(value: Any, count: int) -> Any:
    """Return the form of a piece to send to a gateway that wants so many likely entries: these, or the piece as it is."""
    if not isinstance(value, np.ndarray) or not can_be_reduced(value.dtype, value.shape, count):
        return value
    found = find_likely(value, count)
    return found if np.isfinite(found.log_sums).all() else value


def can_be_reduced(dtype: np.dtype[Any], shape: tuple[int, ...], count: int) -> bool:
    """Whether so many entries of each row are fewer bytes than the rows."""
    return dtype in TYPES and len(shape) > 0 and prod(shape) > 0 and 0 < 2 * count < shape[-1] < 2**32


def find_likely(array: Array, count: int) -> LikelyEntries:
    """Return the `count` most likely entries of each row of a float array; all of them if a row has no more."""
    rows = array.reshape(-1, array.shape[-1])
    if rows.dtype == np.float16:
        rows = rows.astype(np.float32)  # Without loss, and the sums are right.
    kept = min(count, rows.shape[1])
    ids, log_sums = np.empty((len(rows), kept), np.uint32), np.empty(len(rows))
    for n, row in enumerate(rows):
        greatest = row.max()
        if np.isfinite(greatest):
            ids[n], log_sums[n] = _greatest(row, kept), _log_sum(row, greatest)
        else:
            ids[n], log_sums[n] = range(kept), -np.inf if greatest == -np.inf else np.nan
    values = np.take_along_axis(array.reshape(rows.shape), ids.astype(np.int64), axis=1)
    return LikelyEntries(array.shape, ids, values, log_sums)


def _log_sum(row: Array, greatest: Any) -> float:
    """The logarithm of the sum of the exponentials."""
    with np.errstate(over="ignore", under="ignore"):
        total = np.exp(row - greatest).sum(dtype=np.float64)
    return float(greatest) + float(np.log(total))


def _greatest(row: Array, count: int) -> Array:
    """Where the `count` greatest of these numbers are, the greatest first, equal ones by their places."""
    if count == 1:
        return np.array([row.argmax()])
    width = row.size // (BLOCKS * count)
    near = np.arange(row.size)
    if width > 1:
        # As many blocks have a number that is at least `least`, so that the greatest numbers are among those that are. A
        # block is a column here, because numpy finds the greatest numbers of columns sooner than those of rows.
        peaks = row[: row.size // width * width].reshape(width, -1).max(axis=0)
        least = np.partition(peaks, peaks.size - count)[peaks.size - count]
        near = np.flatnonzero(row >= least)
    order = np.argsort(-row[near], kind="stable")[:count]
    found: Array = near[order]
    return found
