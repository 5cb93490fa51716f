"""The law for what is selected by values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.access.law import Case, check_any_region, check_whole, declared, floats, ints
from tests.planner.access.node_cases import node_cases

KEPT = np.asarray([True, False, True, True])
MARKS = floats(2)

CASES = [
    Case("Compress", [floats(2, 4, 5), KEPT], {"axis": 1}, version=11),
    Case("Compress", [floats(6, 5), KEPT], {"axis": -2}, version=9),
    Case("OneHot", [ints(0, 3, -1, 9), np.asarray(4), MARKS], version=11),
    Case("OneHot", [np.asarray([[0, 2], [1, -3], [5, 1]]), ints(3), MARKS], {"axis": 1}, version=11),
    Case("OneHot", [np.asarray([[0, 2], [1, 2]]), np.asarray(3), ints(7, 8)], {"axis": -2}, version=9),
    Case(
        "OneHot", [floats(3, 2, low=0.0, high=3.0), np.asarray(3, np.float32), MARKS], {"axis": 0}, version=11
    ),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_case(number: int, data: st.DataObject) -> None:
    checked = declared(CASES[number])
    assert checked.access.axes()
    check_any_region(checked, data)


@pytest.mark.parametrize("op_type", ["Compress", "OneHot"])
@settings(max_examples=1)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    for name, case in node_cases(op_type).items():
        if "default_axis" not in name and "bfloat16" not in name:
            check_any_region(declared(case), data, tries=2)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case("Compress", [floats(2, 4), KEPT], version=11), "flat"),
        (Case("NonZero", [floats(3, 4)], version=13), "how much"),
        (Case("Unique", [floats(3, 4)], version=11, outputs=4), "with each other"),
        (Case("DynamicQuantizeLinear", [floats(3, 4)], version=11, outputs=3), "scale"),
    ],
)
def test_what_cannot_be_split_says_why(case: Case, why: str) -> None:
    access = check_whole(case).access
    assert access.opaque is not None and why in access.opaque and access.axes() == ()


OPERATORS = frozenset({"Compress", "OneHot"})
