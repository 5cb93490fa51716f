"""Reduced precision: rounds the float32 numbers of a piece to float16 or to one byte each, and restores them. Rules: arrays
only.

The plan decides which pieces are rounded (planner/plans/reduced_precision.py); the frame names the type, and the receiver
checks it. A sender may always send a piece exactly, and does so if rounding would lose more than the last digits: if the
piece holds a NaN, an infinity or a number beyond float16's range, or only numbers that are too small for float16 or for a
step of int8.

The error is at most 2**-11 of the piece's largest magnitude in float16, and half a step in int8, where a step is a 255th
of the row's range. These come back exactly: a row of equal numbers, the least number of a row and, in float16, every
number with few digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from edgepart.planner.errors import FrameError, InternalError
from edgepart.planner.plans.reduced_precision import EXACT, FLOAT16, INT8, count_rows, wire_bytes
from edgepart.planner.region import Array

STEPS = 255
"""The number of steps in the range of a row, because a byte has 256 values."""
SMALLEST = {FLOAT16: float(np.finfo(np.float16).tiny), INT8: float(np.finfo(np.float32).tiny)}
"""The lower bounds of a piece's largest magnitude (float16) and of a step (int8): below them digits are lost."""


@dataclass(frozen=True)
class Rounded:
    """A rounded piece in the form in which it is sent."""

    kind: str
    """FLOAT16 or INT8."""
    shape: tuple[int, ...]
    data: Array
    """Bytes: the float16 numbers, or for int8 the least values of all rows and the steps of all rows (both float32), then a
    byte for each number."""

    def __post_init__(self) -> None:
        if self.kind not in (FLOAT16, INT8):
            raise FrameError(f"numbers are not rounded to {self.kind[:40]!r}")
        if self.data.nbytes != wire_bytes(self.kind, self.shape):
            raise FrameError(f"{self.data.nbytes} bytes are no {self.kind} numbers of shape {self.shape}")

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @cached_property
    def array(self) -> Array:
        """The float32 numbers, computed once."""
        if self.kind == FLOAT16:
            return self.data.view(np.float16).reshape(self.shape).astype(np.float32)
        rows = count_rows(self.shape)
        least, step = self._ranges()
        with np.errstate(all="ignore"):  # A peer may send any numbers.
            found = np.multiply(self.data[8 * rows :].reshape(rows, -1), step, dtype=np.float32)
            found += least
        return found.reshape(self.shape)

    @property
    def error(self) -> float:
        """The largest error of a number that rounding can make, relative to the largest magnitude of the piece."""
        if self.kind == FLOAT16:
            return 2.0**-11
        least, step = self._ranges()
        largest = float(np.maximum(np.abs(least), np.abs(least + STEPS * step)).max(initial=0.0))
        return 0.5 * float(step.max(initial=0.0)) / largest if largest else 0.0

    def _ranges(self) -> tuple[Array, Array]:
        """The least value of each row and the step of each row, as two columns."""
        rows = count_rows(self.shape)
        both = self.data[: 8 * rows].view(np.float32).reshape(2, rows, 1)
        return both[0], both[1]


Travelling = Any
"""A value as it travels: itself, or a Rounded."""


def round_array(array: Any, kind: str) -> Travelling:
    """Return the form of the array to send: a Rounded, or the array itself if `kind` is EXACT or rounding would lose more
    than the last digits. InternalError if a value to be rounded is not a float32 array."""
    if kind == EXACT:
        return array
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        raise InternalError("only arrays of float32 are rounded")
    data = _to_float16(array) if kind == FLOAT16 else _to_int8(array)
    return array if data is None else Rounded(kind, array.shape, data)


def restore_array(value: Travelling) -> Any:
    """Return the value that was sent: the numbers of a Rounded, or any other value itself."""
    return value.array if isinstance(value, Rounded) else value


def _to_float16(array: Array) -> Array | None:
    """Return the bytes in float16; None if any result is an infinity or a NaN, or all numbers are too small."""
    with np.errstate(over="ignore", under="ignore"):
        found = array.astype(np.float16, order="C").reshape(-1)
    if found.size:
        # Without the sign bit, the bits of floats compare like the magnitudes of the floats.
        largest = int((found.view(np.uint16) & 0x7FFF).max())
        if largest >= 0x7C00 or (largest < 0x0400 and array.any()):
            return None
    return found.view(np.uint8)


def _to_int8(array: Array) -> Array | None:
    """Return the bytes in int8; None if the range of a row is infinite or NaN, or too small to be divided into steps."""
    rows = count_rows(array.shape)
    if not array.size:
        return np.zeros(wire_bytes(INT8, array.shape), np.uint8)
    numbers = np.ascontiguousarray(array).reshape(rows, -1)
    data: Array = np.empty(wire_bytes(INT8, array.shape), np.uint8)
    least, step = data[: 8 * rows].view(np.float32).reshape(2, rows, 1)
    with np.errstate(all="ignore"):
        numbers.min(1, keepdims=True, out=least)
        extent = numbers.max(1, keepdims=True) - least
        np.divide(extent, np.float32(STEPS), out=step)
        # A NaN or an infinity among the numbers makes the range NaN or infinite too.
        if not np.isfinite(extent).all() or (step[extent > 0] < SMALLEST[INT8]).any():
            return None
        places = np.subtract(numbers, least)
        places *= np.divide(np.float32(1), step, where=step > 0, out=np.zeros_like(step))
        places += np.float32(0.5)
        np.minimum(places, np.float32(STEPS), out=places)
    data[8 * rows :] = places.astype(np.uint8).reshape(-1)
    return data


@dataclass(slots=True)
class RoundingTally:
    """Counts the pieces of one deployment that this device had to round."""

    rounded: int = 0
    as_they_are: int = 0
    """The pieces that were sent exactly, because rounding would have lost more than the last digits."""
    error: float = 0.0
    """The largest error of a number, relative to the largest magnitude of its piece."""

    def count(self, kinds: Sequence[str], values: Sequence[Travelling]) -> None:
        """Count these pieces as sent. `kinds` holds the type that each had to be rounded to."""
        for kind, value in zip(kinds, values, strict=True):
            if isinstance(value, Rounded):
                self.rounded += 1
                self.error = max(self.error, value.error)
            elif kind != EXACT:
                self.as_they_are += 1


def round_all(kinds: Sequence[str], values: Sequence[Any]) -> list[Travelling]:
    """Return the pieces of a transfer in the form to send (`round_array`)."""
    return [round_array(value, kind) for kind, value in zip(kinds, values, strict=True)]
