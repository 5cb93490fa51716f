"""Regions against the plain twin: boolean masks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.region import (
    Array,
    Interval,
    Region,
    Span,
    span,
    span_hull,
    span_intersect,
    span_size,
    span_subtract,
)

SHAPE = (5, 7, 4)

intervals = st.tuples(st.integers(0, 8), st.integers(0, 8))


def spans(extent: int) -> st.SearchStrategy[Span]:
    bounds = st.tuples(st.integers(0, extent), st.integers(0, extent))
    return st.lists(bounds, max_size=3).map(lambda pairs: span(*pairs))


regions = st.tuples(*map(spans, SHAPE)).map(Region)
boxes = regions.map(Region.hull)


def mask(*regions: Region) -> Array:
    """Which elements of a tensor of SHAPE are in any of the regions."""
    found = np.zeros(SHAPE, bool)
    for region in regions:
        for box in region.boxes():
            found[box.slices()] = True
    return found


@given(st.lists(intervals))
def test_a_span_holds_the_same_numbers_in_normal_form(pairs: list[tuple[int, int]]) -> None:
    one = span(*pairs)
    assert [n for i in one for n in range(i.start, i.stop)] == sorted(
        {n for a, b in pairs for n in range(a, b)}
    )
    assert all(a.stop < b.start for a, b in pairwise(one))


@given(spans(9), spans(9))
def test_spans_are_sets(one: Span, two: Span) -> None:
    def numbers(s: Span) -> set[int]:
        return {n for i in s for n in range(i.start, i.stop)}

    assert numbers(span_intersect(one, two)) == numbers(one) & numbers(two)
    assert numbers(span_subtract(one, two)) == numbers(one) - numbers(two)
    assert span_intersect(one, two) == span(*span_intersect(one, two))
    assert span_size(one) == len(numbers(one))
    assert not one or span_hull(one) == (Interval(min(numbers(one)), max(numbers(one)) + 1),)


@given(regions, regions)
def test_intersect_and_contains_agree_with_masks(one: Region, two: Region) -> None:
    assert (mask(one.intersect(two)) == (mask(one) & mask(two))).all()
    assert one.contains(two) == bool((mask(one) | ~mask(two)).all())
    assert one.size == mask(one).sum()
    assert one.is_empty == (not mask(one).any())


@given(regions, st.lists(regions, max_size=3))
def test_subtract_gives_disjoint_rest(one: Region, others: list[Region]) -> None:
    rest = one.subtract_all(others)
    assert (mask(*rest) == (mask(one) & ~mask(*others))).all()
    assert sum(region.size for region in rest) == mask(*rest).sum()


@given(regions, regions)
def test_unions(one: Region, two: Region) -> None:
    union = one.union_if_box(two)
    if union is not None:
        assert (mask(union) == (mask(one) | mask(two))).all()
    around = one.union_spans(two)
    assert around.contains(one)
    assert around.contains(two)


@given(regions)
def test_crop_gives_the_elements_in_order(region: Region) -> None:
    array = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    packed = region.crop(array)
    assert packed.shape == region.shape
    assert (packed.ravel() == array[mask(region)]).all() if not region.is_empty else packed.size == 0


@given(regions, regions)
def test_within_finds_a_part_in_the_packed_whole(one: Region, two: Region) -> None:
    inner, array = one.intersect(two), np.arange(np.prod(SHAPE)).reshape(SHAPE)
    if inner.is_empty:
        return
    assert (inner.within(one).crop(one.crop(array)) == inner.crop(array)).all()


def test_a_scalar_and_an_unknown_shape_are_all_or_nothing() -> None:
    whole = Region.full(None)
    assert whole == Region.full(()) == Region(())
    assert (whole.size, whole.is_empty, whole.shape) == (1, False, ())
    assert whole.subtract(whole) == ()
    assert whole.contains(whole)
    assert whole.crop(np.array(3.0)) == 3.0


@pytest.mark.parametrize("bounds", [(3, 3), (4, 2)])
def test_an_interval_is_never_empty(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="empty interval"):
        Interval(*bounds)


def test_mixing_ranks_and_leaving_the_outer_region_are_refused() -> None:
    with pytest.raises(ValueError, match="rank 1 against rank 2"):
        Region.box((0, 1)).intersect(Region.box((0, 1), (0, 1)))
    with pytest.raises(ValueError, match="is not inside"):
        Region.box((0, 3)).within(Region.box((1, 3)))
    with pytest.raises(ValueError, match="is not a box"):
        Region((span((0, 1), (2, 3)),)).slices()
