"""Rounding of pieces that travel: float32 numbers to float16 or to one byte each, and back. Rules: arrays only.

What is rounded is the plan's (planner/plans/reduced_precision.py); the frame names it, and the receiver checks that. A
sender may always send a piece as it is, and does where rounding would lose more than the last digits: where there is a
NaN or an infinity, a number over float16's range, or nothing but numbers that are too small for float16's, or for a
step of their own.

Off by how much: float16 by 2**-11 of the piece's largest magnitude at most; int8 by half a step of the row, which is a
255th of the row's range. A row of equal numbers comes back as it was, and so do a row's least and, in float16, every
number of few digits.
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
SMALLEST = {FLOAT16: float(np.finfo(np.float16).tiny), INT8: float(np.finfo(np.float32).tiny)}
"""What the largest magnitude in float16, and a step in int8, must not be below: digits are lost from there on."""


@dataclass(frozen=True)
class Rounded:
    """A piece as it travels."""

    kind: str
    """FLOAT16 or INT8."""
    shape: tuple[int, ...]
    data: Array
    """Bytes: float16 numbers; or the rows' least values, their steps (float32), and a byte for each number."""

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
        """The float32 numbers; the same array each time."""
        if self.kind == FLOAT16:
            return self.data.view(np.float16).reshape(self.shape).astype(np.float32)
        rows = count_rows(self.shape)
        least, step = self._ranges()
        with np.errstate(all="ignore"):  # What a peer sends may be anything.
            found = np.multiply(self.data[8 * rows :].reshape(rows, -1), step, dtype=np.float32)
            found += least
        return found.reshape(self.shape)

    @property
    def error(self) -> float:
        """The most that a number may be off by rounding, relative to the largest magnitude of the piece."""
        if self.kind == FLOAT16:
            return 2.0**-11
        least, step = self._ranges()
        largest = float(np.maximum(np.abs(least), np.abs(least + STEPS * step)).max(initial=0.0))
        return 0.5 * float(step.max(initial=0.0)) / largest if largest else 0.0

    def _ranges(self) -> tuple[Array, Array]:
        """By row, its least value and its step, as columns."""
        rows = count_rows(self.shape)
        both = self.data[: 8 * rows].view(np.float32).reshape(2, rows, 1)
        return both[0], both[1]


Travelling = Any
"""A value, or a Rounded."""


def rounded(array: Any, kind: str) -> Travelling:
    """The array as it is to travel: a Rounded; the array itself where `kind` is EXACT, or rounding would lose more than
    last digits. InternalError where it is no array of float32."""
    if kind == EXACT:
        return array
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        raise InternalError("only arrays of float32 are rounded")
    data = _to_float16(array) if kind == FLOAT16 else _to_int8(array)
    return array if data is None else Rounded(kind, array.shape, data)


def restored(value: Travelling) -> Any:
    """What a value that came is."""
    return value.array if isinstance(value, Rounded) else value


def _to_float16(array: Array) -> Array | None:
    """None where an infinity or a NaN comes out, or all is too small."""
    with np.errstate(over="ignore", under="ignore"):
        found = array.astype(np.float16, order="C").reshape(-1)
    if found.size:
        # Of numbers that are not negative, the bits are in the numbers' order.
        largest = int((found.view(np.uint16) & 0x7FFF).max())
        if largest >= 0x7C00 or (largest < 0x0400 and array.any()):
            return None
    return found.view(np.uint8)


def _to_int8(array: Array) -> Array | None:
    """None where a row has a range that is none, or is too small to be divided."""
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
        # A NaN or an infinity among the numbers is one in the range, too.
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
    """What became of the pieces of one deployment that were to be rounded here."""

    rounded: int = 0
    as_they_are: int = 0
    """Sent with all their digits, because rounding would have lost more than the last ones."""
    error: float = 0.0
    """The most that a number was off, relative to the largest magnitude of its piece."""

    def count(self, kinds: Sequence[str], values: Sequence[Travelling]) -> None:
        """Pieces that were to be rounded so, as they travel."""
        for kind, value in zip(kinds, values, strict=True):
            if isinstance(value, Rounded):
                self.rounded += 1
                self.error = max(self.error, value.error)
            elif kind != EXACT:
                self.as_they_are += 1


def round_all(kinds: Sequence[str], values: Sequence[Any]) -> list[Travelling]:
    """The pieces of a transfer as they are to travel."""
    return [rounded(value, kind) for kind, value in zip(kinds, values, strict=True)]
