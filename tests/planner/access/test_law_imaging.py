"""The law for images that are put together, framed or aimed at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Region
from tests.planner.access.law import Case, check_any_region, declared, floats, ints
from tests.planner.access.node_cases import node_cases

SHAPE = (2, 3, 6, 5)


def _columns(image: tuple[int, ...], block: tuple[int, ...], count: int, **said: Any) -> Case:
    rows = 3 * int(np.prod(block))
    return Case("Col2Im", [floats(2, rows, count), ints(*image), ints(*block)], said, version=18)


CASES = [
    _columns((5, 5), (2, 3), 12),
    _columns((5, 5), (2, 2), 4, strides=[2, 2], pads=[0, 0, 0, 0]),
    _columns((5, 6), (2, 2), 30, pads=[1, 0, 1, 1], dilations=[2, 1]),
    _columns((4, 4, 3), (1, 2, 3), 12),
    Case("AffineGrid", [floats(3, 2, 3), ints(3, 7, 4, 5)], {"align_corners": 1}, version=20),
    Case("AffineGrid", [floats(2, 3, 4), ints(2, 1, 2, 3, 4)], version=20, constants=frozenset({1})),
    Case("CenterCropPad", [floats(*SHAPE), ints(2, 3, 4, 5)], version=18),
    Case("CenterCropPad", [floats(*SHAPE), ints(2, 3, 9, 2)], version=18, constants=frozenset({1})),
    Case("CenterCropPad", [floats(*SHAPE).astype(np.int64), ints(8, 2)], {"axes": [-1, -2]}, version=18),
    Case("CenterCropPad", [floats(*SHAPE), ints(7)], {"axes": [1]}, version=18),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_case(number: int, data: st.DataObject) -> None:
    check_any_region(declared(CASES[number]), data)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=3), st.data())
def test_any_frame(extents: list[tuple[int, int]], data: st.DataObject) -> None:
    before, after = zip(*extents, strict=True)
    check_any_region(declared(Case("CenterCropPad", [floats(*before), ints(*after)], version=18)), data)


@pytest.mark.parametrize("op_type", ["AffineGrid", "CenterCropPad", "Col2Im"])
@settings(max_examples=1)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    for case in node_cases(op_type).values():
        check_any_region(declared(case), data, tries=2)


def test_a_frame_reads_what_is_inside_it() -> None:
    access = declared(CASES[7]).access
    wanted = {0: Region.box((0, 1), (0, 3), (0, 4), (0, 2))}
    assert access.needs(wanted) == (Region.box((0, 1), (0, 3), (0, 3), (1, 3)), None)


def test_channels_of_columns_are_blocks_of_rows() -> None:
    wanted = {0: Region.box((0, 1), (1, 2), (0, 5), (0, 5))}
    assert declared(CASES[0]).access.needs(wanted)[0] == Region.box((0, 1), (6, 12), (0, 12))


OPERATORS = frozenset({"AffineGrid", "CenterCropPad", "Col2Im"})
