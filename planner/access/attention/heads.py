"""Heads: the extents of an attention operator, its loops, and how the inputs that all attention operators
have follow the loops. Rules only."""

from __future__ import annotations

from dataclasses import dataclass

from edgepart.planner.access.declare.aligned import Along
from edgepart.planner.access.declare.bound import Shape
from edgepart.planner.access.declare.loops import Followed, Loop, LoopPiece
from edgepart.planner.region import Region

BATCH, HEAD, ROW, KEY, FEATURE = range(5)
"""The loops of attention. HEAD runs over the heads of keys, each of which serves a group of query heads."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The extents of an attention operator."""

    flat: bool
    """Whether queries, keys and values are [batch, sequence, heads * size], not [batch, heads, sequence, size]."""
    batch: int
    queries: int
    """The number of query heads, a multiple of `keys`."""
    keys: int
    """The number of heads of keys and of values."""
    size: int
    """The size of a head of queries and keys."""
    value_size: int
    rows: int
    past: int
    """The number of keys of the past, before the operator's new keys."""
    total: int
    """The number of keys, those of the past included."""

    @property
    def group(self) -> int:
        return self.queries // self.keys

    def work(self, space: Region) -> float:
        """Returns the FLOPs of a part of the loops: for the product of queries and keys, the product with
        values, and about five operations for each exponential."""
        batch, heads, rows, keys, features = space.shape
        inner = 2 * self.size + 2 * (self.value_size if self.flat else features) + 5
        return float(batch * heads * self.group * rows * keys * inner)


def loops_of(heads: Heads) -> tuple[Loop, ...]:
    return (
        Loop("batch", heads.batch),
        Loop("head", heads.keys),
        Loop("sequence", heads.rows),
        Loop("key", heads.total, shared=False),
        Loop("feature", 1 if heads.flat else heads.value_size),
    )


def follow_past(heads: Heads) -> tuple[Followed, Followed]:
    """Returns how past keys and values, [batch, heads, past, size], follow the loops."""
    key: Followed = [Along(BATCH), Along(HEAD), LoopPiece(KEY), None]
    return key, [*key[:-1], None if heads.flat else Along(FEATURE)]


def follow_scores(shape: Shape | None, heads: Heads) -> Followed | None:
    """Returns how an input that is broadcast to [batch, heads, rows, keys] follows the loops."""
    if shape is None:
        return None
    full: list[Along | LoopPiece] = [LoopPiece(KEY), Along(ROW), Along(HEAD, heads.group), Along(BATCH)]
    return [None if extent == 1 else one for extent, one in zip(shape[::-1], full, strict=False)][::-1]
