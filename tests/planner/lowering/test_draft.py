"""The four cases of the BBGraP paper as a table, and what follows from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.lowering.draft import Case, classify_need, coalesce_regions, covers, missing_regions
from edgepart.planner.region import Region, span


def rows(*bounds: tuple[int, int]) -> Region:
    return Region((span((0, 3)), span(*bounds)))


@pytest.mark.parametrize(
    ("figure", "need", "owned", "case", "fetched"),
    [
        ("5(b)", rows((0, 5)), rows((0, 4)), Case.BIGGER, [rows((4, 5))]),
        ("5(b), both sides", rows((3, 9)), rows((4, 8)), Case.BIGGER, [rows((3, 4), (8, 9))]),
        ("5(c)", rows((0, 4)), rows((0, 4)), Case.EQUAL, []),
        ("5(d)", rows((1, 3)), rows((0, 4)), Case.SMALLER, []),
        ("5(e)", rows((1, 6)), rows((0, 4)), Case.SHIFTED, [rows((4, 6))]),
        ("nothing in common", rows((4, 6)), rows((0, 4)), Case.ELSEWHERE, [rows((4, 6))]),
        ("not there at all", rows((0, 6)), None, Case.ELSEWHERE, [rows((0, 6))]),
    ],
)
def test_the_cases_of_the_paper(
    figure: str, need: Region, owned: Region | None, case: Case, fetched: list[Region]
) -> None:
    assert classify_need(need, owned) is case, figure
    assert list(missing_regions([need], owned)) == fetched, figure


def test_a_scalar_is_here_or_elsewhere() -> None:
    assert classify_need(Region(()), Region(())) is Case.EQUAL
    assert classify_need(Region(()), None) is Case.ELSEWHERE
    assert missing_regions([Region(())], None) == (Region(()),)


boxes = st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(0, 6), st.integers(1, 4)).map(
    lambda b: Region.box((b[0], b[0] + b[1]), (b[2], b[2] + b[3]))
)


def mask(regions: list[Region]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    counted = np.zeros((10, 10), np.int64)
    for region in regions:
        for box in region.boxes():
            counted[box.slices()] += 1
    return counted


@given(st.lists(boxes, min_size=1, max_size=4), st.none() | boxes)
def test_missing_is_each_element_once(needs: list[Region], owned: Region | None) -> None:
    have = mask([owned]) if owned else np.zeros((10, 10), np.int64)
    wanted = (mask(needs) > 0) & (have == 0)
    assert (mask(list(missing_regions(needs, owned))) == wanted).all()


@given(st.lists(boxes, max_size=5))
def test_coalescing_keeps_the_elements_in_no_more_regions(regions: list[Region]) -> None:
    joined = coalesce_regions(regions)
    assert ((mask(list(joined)) > 0) == (mask(regions) > 0)).all()
    assert len(joined) <= len(regions)


def test_an_empty_tensor_is_covered_by_itself_only() -> None:
    nothing = Region((span(), span((0, 3))))
    assert covers(nothing, nothing)
    assert not covers(None, nothing)
    assert not covers(rows((0, 1)), rows((1, 2)))
