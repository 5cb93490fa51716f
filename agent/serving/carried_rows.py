"""Carried rows: which rows of states a device needs to go on with a sequence, and how it puts them together from those that
several devices have. Rules: arrays only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from edgepart.agent.execution.carried_states import PlanId
from edgepart.agent.execution.copies import plan_copy
from edgepart.agent.execution.sequences import first_rows
from edgepart.agent.wire.dtypes import element_dtype
from edgepart.agent.wire.inference import ResumeSequence, WantRows
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import FrameError
from edgepart.planner.plans.plan import IN_PLACE_ROWS, KeptPiece, Piece
from edgepart.planner.region import Array, Region, span


@dataclass(frozen=True, slots=True)
class PieceRows:
    """The first rows of a piece of a state."""

    piece: Piece
    """The whole piece."""
    array: Array
    """It has at least `position` rows."""
    position: int

    def overlaps(self, wanted: Iterable[KeptPiece]) -> bool:
        """Whether a device that keeps `wanted` needs something of it."""
        return any(_overlap(self.piece, one.read) for one in wanted)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of a device's pieces, as far as another device needs them."""

    plan: PlanId
    """The plan by which they were made."""
    device: str
    position: int
    pieces: Sequence[KeptPiece]
    arrays: Sequence[Value]
    wanted: Sequence[KeptPiece]
    """The pieces that the other device keeps."""

    def rows(self) -> list[PieceRows]:
        """The rows of each piece that is needed."""
        return [PieceRows(self.pieces[n].read, self.arrays[n], self.position) for n in self.needed()]

    def parts(self, most_bytes: int) -> Iterator[tuple[tuple[int, ...], list[Array]]]:
        """Yield the numbers of pieces and their first rows, in parts of about so many bytes."""
        needed = self.needed()
        numbers = list(needed)
        rows = [self._rows_of(number, needed[number].read) for number in numbers]
        for part in parts_of([array.nbytes for array in rows], most_bytes):
            yield tuple(numbers[n] for n in part), [rows[n] for n in part]

    def needed(self) -> dict[int, KeptPiece]:
        """The parts of pieces that are needed, by the numbers of the pieces."""
        every = ((number, crop_to(piece, self.wanted)) for number, piece in enumerate(self.pieces))
        return {number: piece for number, piece in every if piece is not None}

    def _rows_of(self, number: int, part: Piece) -> Array:
        """The rows of a part of a piece."""
        whole, rows = self.pieces[number].read, first_rows(self.arrays[number], self.position)
        at = _rows_of(part, self.position).region.within(_rows_of(whole, self.position).region)
        return at.crop(rows)


def crop_to(piece: KeptPiece, wanted: Iterable[KeptPiece]) -> KeptPiece | None:
    """The smallest part of a piece that has all that is wanted of it; None if that is nothing."""
    whole = piece.read.region
    parts = [whole.intersect(one.read.region) for one in wanted if _overlap(piece.read, one.read)]
    if not parts:
        return None
    region = reduce(Region.union_spans, parts)
    read = Piece(piece.read.tensor, region)
    return replace(piece, read=read, nbytes=piece.nbytes * region.size // whole.size)


def _overlap(one: Piece, other: Piece) -> bool:
    same = one.tensor == other.tensor and one.region.rank == other.region.rank
    return same and not one.region.intersect(other.region).is_empty


def usable_rows(want: ResumeSequence | WantRows, revision: int, position: int) -> int:
    """How many of the first `position` rows, which were kept in a revision, are those of the sequence that is resumed. A
    sequence that was cut is still what it was before, up to where it was cut.

    >>> from edgepart.agent.wire.inference import NO_EPOCH
    >>> want = WantRows("chat", NO_EPOCH, "text", revision=3, position=9, since=5)
    >>> [usable_rows(want, revision, position) for revision, position in ((3, 12), (3, 7), (2, 7), (2, 4), (1, 7))]
    [9, 7, 5, 4, 0]
    """
    if revision == want.revision:
        return min(position, want.position)
    return min(position, want.position, want.since) if revision + 1 == want.revision else 0


def gather_rows(
    pieces: Sequence[KeptPiece], arrays: Sequence[Array], found: Collection[PieceRows], most: int
) -> int:
    """Copy the first rows of `pieces` into `arrays`, from what was found. Returns their number, at most `most`; 0, with
    nothing copied, if rows of a piece are missing."""
    useful = [one for one in found if one.overlaps(pieces)]
    position = min((most, *(one.position for one in useful)))
    slots = {n: _rows_of(one.piece, position) for n, one in enumerate(useful)} if position > 0 else {}
    recipes = [plan_copy(_rows_of(piece.read, position), slots) for piece in pieces] if slots else [None]
    if position <= 0 or any(recipe is None for recipe in recipes):
        return 0
    held: dict[int, Value] = {n: first_rows(one.array, position) for n, one in enumerate(useful)}
    for array, recipe in zip(arrays, recipes, strict=True):
        if recipe is not None:
            recipe.copy_into(first_rows(array, position), held)
    return position


def _rows_of(piece: Piece, position: int) -> Piece:
    return Piece(piece.tensor, piece.region.replace(IN_PLACE_ROWS, span((0, position))))


def check_rows(pieces: Sequence[KeptPiece], arrays: Sequence[Value], begin: int, end: int) -> list[Array]:
    """The arrays, if they are the rows from `begin` to `end` of these pieces; raises FrameError otherwise."""
    if len(arrays) != len(pieces):
        raise FrameError(f"rows of {len(arrays)} pieces came for {len(pieces)}")
    return [_check(piece, array, begin, end) for piece, array in zip(pieces, arrays, strict=True)]


def _check(piece: KeptPiece, array: Value, begin: int, end: int) -> Array:
    region, dtype = piece.read.region, element_dtype(piece.dtype)
    if not 0 <= begin <= end <= region.shape[IN_PLACE_ROWS]:
        raise FrameError(f"{piece.read.tensor} has no rows from {begin} to {end}")
    shape = (*region.shape[:IN_PLACE_ROWS], end - begin, *region.shape[IN_PLACE_ROWS + 1 :])
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
        what = getattr(array, "shape", type(array).__name__)
        raise FrameError(f"rows of {piece.read.tensor} came as {what}, not as {shape} of {piece.dtype}")
    return array


def parts_of(nbytes: Sequence[int], most_bytes: int) -> Iterator[range]:
    """Yield runs of consecutive numbers that together have all of them. The values with these numbers take no more than
    `most_bytes` in a run, unless one alone does.

    >>> [list(part) for part in parts_of([4, 4, 9, 1], 8)]
    [[0, 1], [2], [3]]
    """
    begin = total = 0
    for number, size in enumerate(nbytes):
        if number > begin and total + size > most_bytes:
            yield range(begin, number)
            begin, total = number, 0
        total += size
    if begin < len(nbytes):
        yield range(begin, len(nbytes))
