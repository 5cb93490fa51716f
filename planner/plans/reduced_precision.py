"""Reduced precision: decides which data travels between devices with fewer bits, if the user asks for that,
and how many bytes the data then takes. Pure rules; agent/wire/reduced_precision.py converts the numbers.

Pieces from or to the gateway, pieces that are not float32, pieces whose shape is not known before the run,
and small pieces are never rounded. Rounding small pieces saves little, and their few numbers often matter
much (the weights of channels, parts of a sum)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING

from edgepart.planner.errors import UsageError

if TYPE_CHECKING:  # Callers that only need KINDS do not have to import numpy.
    from edgepart.planner.model.graph import Tensor
    from edgepart.planner.region import Region

EXACT = "float32"
"""Numbers travel unchanged."""
FLOAT16 = "float16"
INT8 = "int8"
"""Each number takes one byte; each row (`count_rows`) has its own minimum and step."""

KINDS = (EXACT, FLOAT16, INT8)

SMALLEST_ROUNDED_BYTES = 1024
"""The smallest piece that is rounded, in unrounded bytes. A larger limit would keep the digits of more small
pieces. A smaller limit would shorten more messages, by half a kilobyte, which takes 0.2 ms at 20 Mbit/s."""

SMALLEST_ROW_NUMBERS = 32
"""The smallest count of numbers in a row that has its own minimum and step. In shorter rows, the 8 bytes of
these two would cancel much of the saving."""

ROW_BYTES = 8
"""Bytes of a row's minimum and step."""

SHARE: Mapping[str, float] = {EXACT: 1.0, FLOAT16: 0.5, INT8: 0.25}
"""Maps each kind to the part of its bytes that a large piece takes on the wire. No piece takes a smaller part."""

COPIES: Mapping[str, float] = {EXACT: 0.0, FLOAT16: 4.0, INT8: 2.0}
"""Maps each kind to the time to round a piece, or to convert it back, as a multiple of the time to copy it.
The factors were measured on a processor with numpy's own conversions."""


def check_kind(kind: str, option: str) -> str:
    """Returns `kind`. Raises UsageError, naming `option`, if `kind` is not one of KINDS."""
    if kind not in KINDS:
        raise UsageError(f"{option} {kind!r}: give one of {', '.join(KINDS)}")
    return kind


def count_rows(shape: tuple[int, ...]) -> int:
    """The number of rows that a piece has in int8: one per channel of each picture (the product of the first
    two of at least three axes), or 1 if such rows would be shorter than SMALLEST_ROW_NUMBERS.

    >>> count_rows((1, 64, 2, 56)), count_rows((1, 512, 1, 7)), count_rows((256, 1024))
    (64, 1, 1)
    """
    rows = prod(shape[:2]) if len(shape) > 2 else 1
    return rows if rows and prod(shape[2:]) >= SMALLEST_ROW_NUMBERS else 1


def wire_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes on the wire of float32 numbers of this shape that are rounded to `kind`.

    >>> [wire_bytes(kind, (1, 64, 2, 56)) for kind in KINDS]
    [28672, 14336, 7680]
    """
    size = prod(shape)
    if kind == INT8:
        return size + ROW_BYTES * count_rows(shape)
    return size * (2 if kind == FLOAT16 else 4)


def rounded_dtype(tensor: Tensor, region: Region, ends: tuple[str, str], asked: str) -> str:
    """The type to which a piece is rounded on its way between two ends; EXACT if it is not rounded. The
    gateway's name is empty."""
    if asked == EXACT or not all(ends) or tensor.dtype != "float" or tensor.shape is None:
        return EXACT
    exact = 4 * region.size
    return asked if exact >= SMALLEST_ROUNDED_BYTES and wire_bytes(asked, region.shape) < exact else EXACT


def transfer_bytes(tensor: Tensor, region: Region, ends: tuple[str, str], asked: str) -> int:
    """Bytes of a piece on the wire; 0 if its shape is not known before the run."""
    if tensor.shape is None:
        return 0
    kind = rounded_dtype(tensor, region, ends, asked)
    return region.size * tensor.item_bytes if kind == EXACT else wire_bytes(kind, region.shape)


def smallest_share(tensor: Tensor | None, asked: str) -> float:
    """The smallest part of its bytes that a tensor can take on the wire between devices."""
    return SHARE[asked] if tensor is not None and tensor.dtype == "float" else 1.0


def rounding_copy_bytes(pieces: Iterable[tuple[str, int]]) -> float:
    """The number of bytes that take as long to copy as `pieces` take to round. Each piece is given as the
    type to which it is rounded, and its number of elements."""
    return sum(COPIES[kind] * 4 * size for kind, size in pieces)
