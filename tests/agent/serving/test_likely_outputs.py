"""Likely outputs: what is merged from pieces is what the whole output would give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.serving.likely_outputs import merge_likely
from edgepart.agent.wire.likely_entries import SUM_ERROR, find_likely, keep_likely
from edgepart.planner.region import Region, Span, span


@st.composite
def parts_of(draw: st.DrawFn, extent: int) -> list[Span]:
    """An axis divided among devices, of which one may have several intervals."""
    owners = draw(st.lists(st.integers(0, 2), min_size=min(extent, 6), max_size=min(extent, 6)))
    bounds = [extent * n // len(owners) for n in range(len(owners) + 1)]
    spans = [
        span(*((bounds[n], bounds[n + 1]) for n, one in enumerate(owners) if one == owner))
        for owner in range(3)
    ]
    return [one for one in spans if one]


@given(st.sampled_from([(90,), (1, 1, 80), (4, 1, 60), (2, 3, 40)]), st.integers(1, 30), st.data())
def test_pieces_make_what_the_whole_makes(shape: tuple[int, ...], count: int, data: st.DataObject) -> None:
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32))).integers(-9, 9, shape)
    whole: Any = numbers.astype(np.float32) / 2
    axis = data.draw(st.integers(0, len(shape) - 1))
    pieces = []
    for rows in data.draw(parts_of(shape[axis])):
        for columns in data.draw(parts_of(shape[-1])) if axis < len(shape) - 1 else [rows]:
            region = Region.full(shape).replace(axis, rows).replace(len(shape) - 1, columns)
            pieces.append((region, keep_likely(region.crop(whole), count)))
    found, expected = merge_likely(shape, pieces, count), find_likely(whole, count)
    assert found.shape == shape and found.count == min(count, shape[-1])
    assert np.array_equal(found.ids, expected.ids) and np.array_equal(found.values, expected.values)
    assert found.log_sums == pytest.approx(expected.log_sums, abs=SUM_ERROR)


def test_an_impossible_piece_adds_nothing_and_one_without_numbers_leaves_its_row_unknown() -> None:
    whole = np.ones((2, 40), np.float32)
    whole[:, 20:] = -np.inf
    halves = [Region.box((0, 2), (0, 20)), Region.box((0, 2), (20, 40))]
    pieces = [(region, keep_likely(region.crop(whole), 2)) for region in halves]
    assert merge_likely((2, 40), pieces, 2).log_sums == pytest.approx(1 + np.log(20), abs=SUM_ERROR)
    whole[1, 30] = np.nan
    pieces = [(region, keep_likely(region.crop(whole), 2)) for region in halves]
    known = np.isfinite(merge_likely((2, 40), pieces, 2).log_sums)
    assert known.tolist() == [True, False]


def test_a_piece_of_another_type_fits_with_no_entries() -> None:
    pieces = [
        (Region.box((0, 20)), keep_likely(np.ones(20, np.float32), 2)),
        (Region.box((20, 30)), np.arange(10)),
    ]
    with pytest.raises(TypeError, match="int64 are no logits"):
        merge_likely((30,), pieces, 2)
