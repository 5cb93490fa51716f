"""The law for operators that make a tensor out of a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from edgepart.planner.region import Region
from tests.planner.access.law import Case, check_any_region, check_whole, declared, ints
from tests.planner.access.node_cases import node_cases


def _range(start: float, limit: float, delta: float, kind: Any = np.int64, **said: Any) -> Case:
    return Case("Range", [np.asarray(value, kind) for value in (start, limit, delta)], **said)


def _filled(*shape: int, value: Any = None, **said: Any) -> Case:
    attributes = {} if value is None else {"value": numpy_helper.from_array(np.asarray([value]))}
    return Case("ConstantOfShape", [ints(*shape)], attributes, **said)


CASES = [
    _range(3, 20, 4),
    _range(10, -9, -3, np.int32, version=11),
    _range(0, 5, 1, np.int16),
    _range(7, 8, 9),
    _range(2, 9, 2, domain="com.microsoft", version=1, opset=17),
    Case("Range", [np.asarray(2), np.asarray(9)], version=1, domain="com.microsoft", opset=17),
    _filled(3, 4),
    _filled(2, 3, 2, 2, value=np.int8(7), version=9),
    _filled(5, value=True, version=23),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_case(number: int, data: st.DataObject) -> None:
    check_any_region(declared(CASES[number]), data)


@pytest.mark.parametrize("op_type", ["Range", "ConstantOfShape"])
@settings(max_examples=3)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    cases = node_cases(op_type)
    tried = [name for name in cases if "float" not in name or op_type != "Range"]
    split = [declared(cases[name]) for name in tried if "shape_zero" not in name]
    for checked in split:
        check_any_region(checked, data, tries=2)
    assert split


def test_a_part_is_made_from_numbers_alone() -> None:
    access = declared(_range(3, 20, 4)).access
    assert access.needs({0: Region.box((1, 3))}) == (Region(()), None, Region(()))
    assert declared(_filled(3, 4)).access.needs({0: Region.box((1, 3), (0, 2))}) == (None,)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (_range(0.5, 3.0, 0.5, np.float32), "rounds"),
        (_range(2, 9, 2, np.int16, domain="com.microsoft", version=1, opset=13), "rounds"),
        (_range(2, 9, 2, domain="com.microsoft", version=1, opset=10), "opset before 11"),
    ],
)
def test_what_cannot_be_split_says_why(case: Case, why: str) -> None:
    opaque = check_whole(case).access.opaque
    assert opaque is not None and why in opaque


@pytest.mark.parametrize("op_type", ["Shape", "Size"])
def test_what_tells_a_shape_is_whole(op_type: str) -> None:
    opaque = check_whole(Case(op_type, [np.zeros((3, 4), np.float32)], version=13)).access.opaque
    assert opaque is not None and "tells a shape" in opaque


OPERATORS = frozenset({"ConstantOfShape", "Range"})
