"""Rounding: which data travels from device to device with fewer bits than it has, where the user asks for that, and what it
comes to in bytes. Rules only; agent/wire/reduced_precision.py does it to numbers.

Never touched: what comes from the gateway or goes to it, whatever is not float32, pieces whose shape is not known before
the run, and pieces that are small, where a message costs what it costs and a few numbers often decide much (the
weights of channels, parts of a sum)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING

from edgepart.planner.errors import UsageError

if TYPE_CHECKING:  # Whoever only asks what kinds there are need not wait for numpy.
    from edgepart.planner.model.graph import Tensor
    from edgepart.planner.region import Region

EXACT = "float32"
"""Everything travels as it is."""
FLOAT16 = "float16"
INT8 = "int8"
"""One byte for each number; each row (`rows_of`) has its own least value and step."""

KINDS = (EXACT, FLOAT16, INT8)

LEAST_BYTES = 1024
"""Of a piece, as it is. More: fewer small pieces lose digits; fewer: more messages are shorter, by half a kilobyte, which
at 20 Mbit/s is 0.2 ms."""

ROW_NUMBERS = 32
"""A row of fewer has no range of its own, as that would take a good part of what is saved."""

ROW_BYTES = 8
"""Of a row's least value and step."""

SHARE: Mapping[str, float] = {EXACT: 1.0, FLOAT16: 0.5, INT8: 0.25}
"""Of the bytes that it has, what a large piece travels with; it is never less."""

COPIES: Mapping[str, float] = {EXACT: 0.0, FLOAT16: 4.0, INT8: 2.0}
"""How many times as long as copying a piece it takes to round it, and to bring it back; measured, on a processor
with numpy's own conversions."""


def checked(kind: str, option: str) -> str:
    """`kind` itself; UsageError where it is none."""
    if kind not in KINDS:
        raise UsageError(f"{option} {kind!r}: give one of {', '.join(KINDS)}")
    return kind


def rows_of(shape: tuple[int, ...]) -> int:
    """Into how many rows a piece is parted in int8: one for each channel of each picture (what the first two of
    three axes or more number), or 1 where those would be short.

    >>> rows_of((1, 64, 2, 56)), rows_of((1, 512, 1, 7)), rows_of((256, 1024))
    (64, 1, 1)
    """
    rows = prod(shape[:2]) if len(shape) > 2 else 1
    return rows if rows and prod(shape[2:]) >= ROW_NUMBERS else 1


def wire_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes that float32 numbers of that shape travel with.

    >>> [wire_bytes(kind, (1, 64, 2, 56)) for kind in KINDS]
    [28672, 14336, 7680]
    """
    size = prod(shape)
    if kind == INT8:
        return size + ROW_BYTES * rows_of(shape)
    return size * (2 if kind == FLOAT16 else 4)


def travels_as(tensor: Tensor, region: Region, ends: tuple[str, str], asked: str) -> str:
    """What a piece is rounded to between these two ends; EXACT where it is not. (A gateway's name is empty.)"""
    if asked == EXACT or not all(ends) or tensor.dtype != "float" or tensor.shape is None:
        return EXACT
    exact = 4 * region.size
    return asked if exact >= LEAST_BYTES and wire_bytes(asked, region.shape) < exact else EXACT


def travelling_bytes(tensor: Tensor, region: Region, ends: tuple[str, str], asked: str) -> int:
    """Bytes of a piece on its way; 0 where its shape is not known before the run."""
    if tensor.shape is None:
        return 0
    kind = travels_as(tensor, region, ends, asked)
    return region.size * tensor.item_bytes if kind == EXACT else wire_bytes(kind, region.shape)


def least_share(tensor: Tensor | None, asked: str) -> float:
    """The least part of its bytes that a tensor travels with between devices."""
    return SHARE[asked] if tensor is not None and tensor.dtype == "float" else 1.0


def converted_bytes(pieces: Iterable[tuple[str, int]]) -> float:
    """Bytes to be copied that take as long as rounding these pieces: by piece, what it is rounded to and its numbers."""
    return sum(COPIES[kind] * 4 * size for kind, size in pieces)
