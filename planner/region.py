"""Interval and Region: a part of a tensor, as a sorted set of disjoint half-open intervals on each axis. Facts and pure
arithmetic.

Everything about halos is region arithmetic: no other module writes the `+ 1` of a border. A region with several
intervals on an axis is BBGraP's ShapeMap (Mateu Cuadrat et al., section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class _Bounds(NamedTuple):
    start: int
    stop: int


class Interval(_Bounds):
    """A half-open interval: `start` is in it, `stop` is not. It is never empty.

    It is a tuple because tuples compare and hash fast, and planning spends most of its time on that."""

    __slots__ = ()

    def __new__(cls, start: int, stop: int) -> Interval:
        """Raises ValueError for an empty interval."""
        if stop <= start:
            raise ValueError(f"empty interval [{start}, {stop})")
        return tuple.__new__(cls, (start, stop))

    @property
    def size(self) -> int:
        return self.stop - self.start


Span = tuple[Interval, ...]
"""A part of one axis: sorted, disjoint intervals that do not touch; () is the empty part."""


def span(*bounds: tuple[int, int] | Interval) -> Span:
    """The normal form of any intervals: sorted, without empty ones, touching and overlapping ones joined.

    >>> span((4, 6), (0, 2), (2, 3), (9, 9))
    (Interval(start=0, stop=3), Interval(start=4, stop=6))
    """
    if len(bounds) == 1:
        only = bounds[0]
        if isinstance(only, Interval):
            return (only,)
        return _between(*only)
    joined: list[list[int]] = []
    for start, stop in sorted(bounds):
        if stop <= start:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
    return tuple(Interval(start, stop) for start, stop in joined)


@lru_cache(maxsize=1 << 16)
def _between(start: int, stop: int) -> Span:
    """The span of one interval, or (). The cache returns the same object for the same bounds, and comparing
    an object with itself is fast."""
    return (Interval(start, stop),) if start < stop else ()


def span_size(one: Span) -> int:
    if len(one) == 1:
        return one[0].stop - one[0].start
    return sum(interval.size for interval in one)


def span_intersect(one: Span, two: Span) -> Span:
    if one == two:
        return one
    if len(one) == len(two) == 1:  # This is the usual case, and planning spends most of its time here.
        return _between(max(one[0].start, two[0].start), min(one[0].stop, two[0].stop))
    return span(*((max(a.start, b.start), min(a.stop, b.stop)) for a in one for b in two))


def span_contains(one: Span, two: Span) -> bool:
    """Whether every index of `two` is in `one`."""
    if one is two or not two:
        return True
    if len(one) == len(two) == 1:
        return one[0].start <= two[0].start and two[0].stop <= one[0].stop
    return span_intersect(one, two) == two


def span_subtract(one: Span, two: Span) -> Span:
    if one == two:
        return ()
    kept: list[tuple[int, int]] = []
    for interval in one:
        start = interval.start
        for hole in two:
            if hole.stop <= start or hole.start >= interval.stop:
                continue
            kept.append((start, hole.start))
            start = max(start, hole.stop)
        kept.append((start, interval.stop))
    return span(*kept)


def span_hull(one: Span) -> Span:
    """The smallest single interval around `one`."""
    return span((one[0].start, one[-1].stop)) if len(one) > 1 else one


class _Size:
    """The size of a region, computed on first use. (`cached_property` would take a lock for it.)"""

    def __get__(self, region: Region, owner: type[Region]) -> int:
        found = 1
        for one in region.spans:
            found *= one[0][1] - one[0][0] if len(one) == 1 else span_size(one)
        region.__dict__["size"] = found
        return found


class _Shape:
    """The shape of a region, computed on first use."""

    def __get__(self, region: Region, owner: type[Region]) -> tuple[int, ...]:
        found = tuple(map(span_size, region.spans))
        region.__dict__["shape"] = found
        return found


@dataclass(frozen=True, init=False)
class Region:
    """A product of spans, one per axis. `Region(())` is a whole scalar, or a whole value without a known shape (a
    sequence, a string tensor whose shape depends on data): such a value cannot be cut."""

    spans: tuple[Span, ...]

    def __init__(self, spans: tuple[Span, ...]) -> None:
        self.__dict__["spans"] = (
            spans  # The fastest way to set a field of a frozen class: a search makes millions of regions.
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Region) and self.spans == other.spans)

    def __hash__(self) -> int:
        return hash(self.spans)

    @staticmethod
    def full(shape: Sequence[int] | None) -> Region:
        """The whole tensor of `shape`; `Region(())` for None, a shape that is not known."""
        return _full(tuple(shape or ()))

    @staticmethod
    def box(*bounds: tuple[int, int]) -> Region:
        """The region with one interval per axis, as in `Region.box((0, 1), (4, 8))`."""
        return Region(tuple(span(b) for b in bounds))

    @property
    def rank(self) -> int:
        return len(self.spans)

    shape = _Shape()
    """Extents of the packed array that holds this region."""
    size = _Size()
    """The number of elements; 1 for rank 0."""

    @property
    def is_empty(self) -> bool:
        return not all(self.spans)

    @property
    def is_box(self) -> bool:
        """Whether no axis has more than one interval."""
        return not self.spans or max(map(len, self.spans)) <= 1

    @property
    def origin(self) -> tuple[int, ...]:
        """The first index on each axis (0 on an empty axis)."""
        return tuple(s[0].start if s else 0 for s in self.spans)

    def nbytes(self, item_bytes: int) -> int:
        return self.size * item_bytes

    def replace(self, axis: int, new: Span) -> Region:
        axis %= self.rank
        return Region((*self.spans[:axis], new, *self.spans[axis + 1 :]))

    def shift(self, axis: int, by: int) -> Region:
        """The region moved along one axis.

        >>> str(Region.box((0, 2), (1, 3)).shift(1, 4))
        '0:2x5:7'
        """
        return self.replace(axis, tuple(Interval(one.start + by, one.stop + by) for one in self.spans[axis]))

    def intersect(self, other: Region) -> Region:
        self._same_rank(other)
        if self is other:
            return self
        spans = tuple(map(span_intersect, self.spans, other.spans))
        return self if spans == self.spans else Region(spans)

    def contains(self, other: Region) -> bool:
        if self is other or other.is_empty:
            return True
        self._same_rank(other)
        return all(map(span_contains, self.spans, other.spans))

    def subtract(self, other: Region) -> tuple[Region, ...]:
        """The part of `self` that is not in `other`, as disjoint regions (each may have several intervals on an
        axis)."""
        if self is other or other.contains(self):
            return ()
        common = self.intersect(other)
        if common.is_empty:
            return (self,)
        left: list[Region] = []
        rest = self
        for axis, keep in enumerate(common.spans):
            outside = span_subtract(rest.spans[axis], keep)
            if outside:
                left.append(rest.replace(axis, outside))
            rest = rest.replace(axis, keep)
        return tuple(left)

    def subtract_all(self, others: Iterable[Region]) -> tuple[Region, ...]:
        left: tuple[Region, ...] = () if self.is_empty else (self,)
        for other in others:
            left = tuple(piece for region in left for piece in region.subtract(other))
        return left

    def union_if_box(self, other: Region) -> Region | None:
        """The union if it is a product of spans (one contains the other, or they differ on one axis), else None."""
        self._same_rank(other)
        if self.contains(other):
            return self
        if other.contains(self):
            return other
        differing = [axis for axis, (a, b) in enumerate(zip(self.spans, other.spans, strict=True)) if a != b]
        if len(differing) != 1:
            return None
        axis = differing[0]
        return self.replace(axis, span(*self.spans[axis], *other.spans[axis]))

    def union_spans(self, other: Region) -> Region:
        """The smallest product of spans that contains both: per axis the union of the intervals."""
        self._same_rank(other)
        if self.is_empty or self.spans == other.spans:
            return other
        if other.is_empty:
            return self
        return Region(tuple(span(*a, *b) for a, b in zip(self.spans, other.spans, strict=True)))

    def hull(self) -> Region:
        """The smallest box around this region."""
        return self if self.is_box else Region(tuple(span_hull(s) for s in self.spans))

    def boxes(self) -> tuple[Region, ...]:
        """The elements of this region as boxes, each with one interval per axis."""
        return tuple(Region(tuple((i,) for i in choice)) for choice in product(*self.spans))

    def within(self, outer: Region) -> Region:
        """This region in the coordinates of the packed array of `outer`. Raises ValueError if `outer` does not contain it.

        >>> Region.box((5, 6)).within(Region((span((0, 2), (4, 8)),)))
        Region(spans=((Interval(start=3, stop=4),),))
        """
        if not outer.contains(self):
            raise ValueError(f"{self} is not inside {outer}")
        return Region(tuple(map(_pack, self.spans, outer.spans)))

    def slices(self) -> tuple[slice, ...]:
        """The Python slices of a box. Raises ValueError for a region with several intervals on an axis."""
        if not self.is_box:
            raise ValueError(f"{self} is not a box")
        return tuple(slice(s[0].start, s[0].stop) if s else slice(0, 0) for s in self.spans)

    def crop(self, array: Array) -> Array:
        """The packed elements of this region from an array that starts at index 0; a view if the region is a box."""
        if self.is_box:
            return array[self.slices()] if self.spans else array
        for axis, one in enumerate(self.spans):
            if len(one) > 1:
                pieces = [array[(slice(None),) * axis + (slice(i.start, i.stop),)] for i in one]
                array = np.concatenate(pieces, axis=axis)
            else:
                bounds = slice(one[0].start, one[0].stop) if one else slice(0, 0)
                array = array[(slice(None),) * axis + (bounds,)]
        return array

    def _same_rank(self, other: Region) -> None:
        if len(self.spans) != len(other.spans):
            raise ValueError(f"rank {self.rank} against rank {other.rank}: {self} and {other}")

    def __str__(self) -> str:
        return "x".join("+".join(f"{i.start}:{i.stop}" for i in s) or "-" for s in self.spans) or "all"


@lru_cache(maxsize=4096)
def _full(shape: tuple[int, ...]) -> Region:
    return Region(tuple(span((0, extent)) for extent in shape))


def _pack(inner: Span, outer: Span) -> Span:
    """The positions of `inner` in the packed `outer`."""
    found: list[tuple[int, int]] = []
    for want in inner:
        before = 0
        for have in outer:
            low, high = max(want.start, have.start), min(want.stop, have.stop)
            if low < high:
                found.append((before + low - have.start, before + high - have.start))
            before += have.size
    return span(*found)
