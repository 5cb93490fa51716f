"""Copies: makes one piece of a tensor from the pieces that this device holds. Rules: arrays only.

A piece is held plain or blocked (nchwc_array.py), and wanted plain or blocked; where the two differ, the copy converts.

Pieces of one tensor may overlap; where they do, they hold the same numbers, so any of them will do. (If a plan rounds what
travels, received pieces hold rounded numbers; that is what the user asked for.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from edgepart.agent.execution.nchwc_array import by_block
from edgepart.agent.wire.tensors import Value
from edgepart.planner.plans.plan import Piece
from edgepart.planner.region import Array, Region

Index = tuple[slice | int, ...]
MakeEmpty = Callable[[tuple[int, ...], Any], Array]
"""Makes an uninitialised array of a shape and a dtype, as np.empty does."""

_ALL = slice(None)
_LINE_BYTES = 64
"""Arrays begin at multiples of this: 64 bytes are one cache line of most processors."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A box of a held piece, and its place in the piece that is put together."""

    slot: int
    source: Index
    """The box's index in the held array, or in that array's view by block if it is blocked."""
    target: Index
    source_block: int = 0
    target_block: int = 0
    size: int = 0
    """The box's number of elements; counted only if an end is blocked."""

    def into(self, whole: Array, held: Array) -> None:
        source = (by_block(held, self.source_block) if self.source_block else held)[self.source]
        target = (by_block(whole, self.target_block) if self.target_block else whole)[self.target]
        # The box consists of whole blocks: reshaping splits the plain end's channels into blocks.
        if source.ndim < target.ndim:
            source = source.reshape(target.shape)
        elif target.ndim < source.ndim:
            target = target.reshape(source.shape)
        target[...] = source


class Scratch:
    """Memory for arrays that last for one step; the next step uses it again. Not thread-safe."""

    def __init__(self, lines: Callable[[int], Array] | None = None) -> None:
        """`lines(nbytes)` returns that many bytes of memory, which begin at a cache line."""
        self._lines = lines or _lines
        self._memory = self._lines(0)
        self._used = 0

    def clear(self) -> None:
        """Free all arrays made here. From now on there is room for as many bytes as were asked for since the last call."""
        if self._used > self._memory.nbytes:
            self._memory = self._lines(self._used)
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array, as np.empty returns; it has memory of its own if no room is left here."""
        if dtype.hasobject:
            return np.empty(shape, dtype)
        start, nbytes = self._used, prod(shape) * dtype.itemsize
        self._used += nbytes + -nbytes % _LINE_BYTES
        if self._used > self._memory.nbytes:
            return np.empty(shape, dtype)
        return self._memory[start : start + nbytes].view(dtype).reshape(shape)

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes


def _lines(nbytes: int) -> Array:
    """Memory that begins at a cache line."""
    memory: Array = np.empty(nbytes + _LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES
    return memory[start : start + nbytes]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The way to get one piece from the pieces held: take one as it is, crop one, or put it together from several."""

    piece: Piece
    slots: tuple[int, ...]
    """The slots of the pieces that are read."""
    crop: Region | None = None
    """The part of a single slot's array that is taken; None takes all of it. Unused if there are `copies`."""
    copies: tuple[Copy, ...] = ()
    """The copies into a new array, if there are several slots or an end is blocked."""

    @property
    def is_held_piece(self) -> bool:
        """Whether the piece is a held array as it is."""
        return not self.copies and self.crop is None

    @property
    def converted(self) -> int:
        """Number of elements that are copied from blocks into the plain order, or back."""
        return sum(copy.size for copy in self.copies if copy.source_block != copy.target_block)

    def copy_into(self, whole: Array, held: Mapping[int, Value]) -> None:
        """Copy the piece into an array of its shape."""
        for copy in self.copies:
            copy.into(whole, held[copy.slot])
        if not self.copies:
            value = held[self.slots[0]]
            whole[...] = value if self.crop is None else self.crop.crop(value)

    def make(self, held: Mapping[int, Value], empty: MakeEmpty = np.empty) -> Value:
        """The piece: the held array itself if it fits as it is, a part of it that is contiguous as it is, or else an array
        that `empty(shape, dtype)` makes."""
        value = held[self.slots[0]]
        if self.copies:
            whole = empty(self.piece.region.shape, value.dtype)
            self.copy_into(whole, held)
            return whole
        part = value if self.crop is None else self.crop.crop(value)
        if self.crop is None or part.flags.c_contiguous:
            return part
        whole = empty(part.shape, part.dtype)
        whole[...] = part
        return whole


def plan_copy(
    want: Piece, slots: Mapping[int, Piece], blocks: Mapping[int, int] | None = None, block: int = 0
) -> CopyPlan | None:
    """The way to get `want`, in blocks of `block`, from the pieces in `slots`, which are in blocks of `blocks[slot]` (0:
    plain); None if some of `want` is missing.

    A held piece that equals `want` is taken as it is; else the smallest that contains it is cropped; else several are
    copied, first those that cover most of it."""
    held = blocks or {}
    same = {slot: piece.region for slot, piece in slots.items() if piece.tensor == want.tensor}
    for slot, region in same.items():
        if region == want.region and held.get(slot, 0) == block:
            return CopyPlan(want, (slot,))
    same = {slot: region for slot, region in same.items() if region.rank == want.region.rank}
    around = [
        (region.size, held.get(slot, 0) != block, slot)
        for slot, region in same.items()
        if region.contains(want.region)
    ]
    if around:
        slot = min(around)[2]
        if not block and not held.get(slot, 0):
            return CopyPlan(want, (slot,), want.region.within(same[slot]))
        same = {slot: same[slot]}
    by_share = sorted(same, key=lambda slot: (-same[slot].intersect(want.region).size, slot))
    missing: tuple[Region, ...] = (want.region,)
    copies: list[Copy] = []
    for slot in by_share:
        taken = [part for hole in missing if not (part := hole.intersect(same[slot])).is_empty]
        for box in (box for part in taken for box in part.boxes()):
            ends = box.within(same[slot]).slices(), box.within(want.region).slices()
            copies += _copies(slot, *ends, held.get(slot, 0), block)
        missing = tuple(left for hole in missing for left in hole.subtract(same[slot]))
    if missing:
        return None
    return CopyPlan(want, tuple(dict.fromkeys(c.slot for c in copies)), copies=tuple(copies))


def _copies(
    slot: int, source: tuple[slice, ...], target: tuple[slice, ...], source_block: int, target_block: int
) -> Iterator[Copy]:
    """The copies of one box: a single one if neither end is blocked or the box consists of whole blocks, else one for
    each run of channels that lies within one block at both ends."""
    block = source_block or target_block
    if not block:
        yield Copy(slot, source, target)
        return
    places = prod(one.stop - one.start for n, one in enumerate(source) if n != 1)
    at, to, count = source[1].start, target[1].start, source[1].stop - source[1].start
    whole = count % block == 0 and not (source_block and at % block) and not (target_block and to % block)
    done = 0
    while done < count:
        room = [
            block - (start + done) % block for start, one in ((at, source_block), (to, target_block)) if one
        ]
        run = count if whole else min(count - done, *room)
        ends = (
            _index(source, at + done, run, source_block, whole),
            _index(target, to + done, run, target_block, whole),
        )
        yield Copy(slot, *ends, source_block, target_block, run * places)
        done += run


def _index(box: tuple[slice, ...], start: int, count: int, block: int, whole: bool) -> Index:
    """The index of `count` channels of a box from `start` on. In a blocked array they are whole blocks or lie in one."""
    if not block:
        return box[0], slice(start, start + count), *box[2:]
    if whole:
        return box[0], slice(start // block, (start + count) // block), _ALL, *box[2:]
    return box[0], start // block, slice(start % block, start % block + count), *box[2:]
