"""The law for matrices in the last two axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Array, Region
from tests.planner.access.law import Case, check_any_region, declared, floats
from tests.planner.access.node_cases import node_cases

SECOND = frozenset({1})


def _number(value: int) -> Array:
    return np.asarray(value, np.int64)


def _numbers(*shape: int, kind: Any) -> Array:
    return np.random.default_rng(0).integers(0, 9, shape).astype(kind)


def _distances(metric: str) -> Case:
    return Case(
        "CDist", [floats(4, 3), floats(5, 3, seed=1)], {"metric": metric}, 1, "com.microsoft", opset=17
    )


CASES = [
    Case("Det", [floats(4, 4)], version=11),
    Case("Det", [floats(2, 3, 4, 4)], version=22),
    Case("Inverse", [floats(4, 4)], version=1, domain="com.microsoft", opset=17),
    Case("Inverse", [floats(2, 3, 4, 4)], version=1, domain="com.microsoft", opset=17),
    _distances("euclidean"),
    _distances("sqeuclidean"),
    Case("Trilu", [floats(2, 3, 4, 5)], version=14),
    Case("Trilu", [floats(4, 5)], {"upper": 0}, version=14),
    Case("Trilu", [_numbers(3, 5, 4, kind=np.int64), _number(-2)], version=14, constants=SECOND),
    Case("Trilu", [_numbers(5, 4, kind=bool), _number(1)], {"upper": 0}, version=14),
    Case("Trilu", [floats(5, 4), _number(2)], version=14),
    Case("Trilu", [floats(5, 4), _number(np.iinfo(np.int64).max)], version=14, constants=SECOND),
    Case("Trilu", [floats(5, 4), _number(-1)], {"upper": 1}, 1, "com.microsoft", SECOND, opset=17),
    Case("EyeLike", [floats(4, 6)], version=9),
    Case("EyeLike", [_numbers(5, 3, kind=np.int32)], {"k": -2}, version=9),
    Case("EyeLike", [_numbers(5, 3, kind=np.int64)], {"k": 1, "dtype": 11}, version=22),
    Case("EyeLike", [floats(3, 3)], {"k": 2**40}, version=9),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_case(number: int, data: st.DataObject) -> None:
    check_any_region(declared(CASES[number]), data)


@settings(max_examples=15)
@given(st.integers(-7, 7), st.booleans(), st.booleans(), st.data())
def test_every_diagonal(k: int, upper: bool, known: bool, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(4, 5), (2, 5, 3), (1, 6), (6, 1)]), "shape")
    constants = SECOND if known else frozenset()
    case = Case("Trilu", [floats(*shape), _number(k)], {"upper": int(upper)}, 14, constants=constants)
    check_any_region(declared(case), data)
    check_any_region(declared(Case("EyeLike", [floats(*shape[-2:])], {"k": k}, version=9)), data, tries=2)


@pytest.mark.parametrize("op_type", ["Det", "EyeLike", "Trilu"])
@settings(max_examples=1)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    for name, case in node_cases(op_type).items():
        if "zero" not in name:
            check_any_region(declared(case), data, tries=2)


def test_a_part_of_a_triangle_reads_itself_and_a_diagonal_reads_nothing() -> None:
    part = Region.box((1, 3), (2, 4))
    assert declared(CASES[10]).access.needs({0: part}) == (part, Region(()))
    assert declared(CASES[13]).access.needs({0: part}) == (None,)


OPERATORS = frozenset({"CDist", "Det", "EyeLike", "Inverse", "Trilu"})
