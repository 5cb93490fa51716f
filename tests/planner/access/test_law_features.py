"""The law for the ai.onnx.ml operators that prepare features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Array, Region
from tests.planner.access.law import (
    Case,
    check_any_region,
    check_axes,
    check_law,
    check_whole,
    declared,
    floats,
    ints,
)
from tests.planner.access.node_cases import node_cases

OPERATORS = frozenset(
    {
        "ArrayFeatureExtractor",
        "Binarizer",
        "CategoryMapper",
        "FeatureVectorizer",
        "Imputer",
        "LabelEncoder",
        "Normalizer",
        "OneHotEncoder",
        "Scaler",
    }
)

NAMES = ["a", "b", "c", "d"]


def _case(op_type: str, inputs: Sequence[Array], version: int = 1, **attributes: Any) -> Case:
    return Case(op_type, inputs, attributes, version=version, domain="ai.onnx.ml", opset=17)


def _numbers(*shape: int, kind: Any = np.int64) -> Array:
    return np.random.default_rng(len(shape)).integers(0, 5, shape).astype(kind)


def _strings(*shape: int) -> Array:
    return np.asarray([*NAMES, "e"], object)[_numbers(*shape)]


CASES: list[tuple[Case, list[str]]] = [
    (_case("ArrayFeatureExtractor", [floats(5, 6), ints(5, 0, 0)]), ["batch", "feature"]),
    (_case("ArrayFeatureExtractor", [floats(5, 6), ints(5, 0, 0)[None]]), ["batch"]),
    (_case("ArrayFeatureExtractor", [floats(6), ints(5, 0, 0)]), ["feature"]),
    (_case("ArrayFeatureExtractor", [_strings(2, 3, 6), ints(1, 4)]), ["batch", "sequence", "feature"]),
    (_case("ArrayFeatureExtractor", [_numbers(4, 6), ints(2)]), ["batch"]),
    *((_case("Binarizer", [one], threshold=0.3), axes)
      for one, axes in ((floats(4, 3), ["batch", "feature"]), (floats(5), ["axis0"]))),
    *((_case("CategoryMapper", [one], cats_strings=NAMES, cats_int64s=[0, 1, 2, 3]), ["batch", "feature"])
      for one in (_numbers(4, 3), _strings(4, 3))),
    (_case("FeatureVectorizer", [floats(4, 3), floats(4, 2)], inputdimensions=[3, 2]), ["batch"]),
    (_case("FeatureVectorizer", [_numbers(4, 3), _numbers(4, 2)], inputdimensions=[2, 4]), ["batch"]),
    (_case("FeatureVectorizer", [floats(3), floats(2)], inputdimensions=[3, 2]), []),
    (_case("Imputer", [_numbers(4, 3, kind=np.float32)], imputed_value_floats=[7.0, 8.0, 9.0],
           replaced_value_float=2.0), ["batch", "feature"]),
    (_case("Imputer", [_numbers(2, 3, 4, kind=np.float32)], imputed_value_floats=[7.0, 8.0, 9.0],
           replaced_value_float=2.0), ["batch"]),
    (_case("Imputer", [_numbers(4)], imputed_value_int64s=[6, 7, 8, 9], replaced_value_int64=2), ["axis0"]),
    (_case("Imputer", [_numbers(4, 3)], imputed_value_int64s=[7], replaced_value_int64=2), ["batch", "feature"]),
    (_case("LabelEncoder", [_strings(4, 3)], version=1, classes_strings=NAMES), ["batch", "feature"]),
    (_case("LabelEncoder", [_numbers(4, 3)], version=2, keys_int64s=[0, 2], values_strings=["p", "q"]),
     ["batch", "feature"]),
    (_case("LabelEncoder", [_strings(5)], version=4, keys_tensor=np.asarray(NAMES, object),
           values_tensor=np.arange(4, dtype=np.int16), default_tensor=np.asarray([9], np.int16)), ["axis0"]),
    *((_case("Normalizer", [one], norm=norm), ["batch"])
      for norm in ("MAX", "L1", "L2") for one in (floats(4, 3), _numbers(4, 3) + 1)),
    (_case("Normalizer", [floats(5)], norm="L2"), []),
    (_case("OneHotEncoder", [_numbers(4, 3)], cats_int64s=[0, 1, 2, 3]), ["batch", "sequence", "feature"]),
    (_case("OneHotEncoder", [_numbers(4)], cats_int64s=[4, 3, 2, 1, 0], zeros=0), ["batch"]),
    (_case("OneHotEncoder", [_strings(5)], cats_strings=NAMES), ["batch", "channel"]),
    (_case("Scaler", [floats(4, 3)], offset=[0.1, 0.2, 0.3], scale=[1.0, 2.0, 3.0]), ["batch", "feature"]),
    (_case("Scaler", [_numbers(4, 3)], offset=[0.1], scale=[2.0]), ["batch", "feature"]),
    (_case("Scaler", [floats(2, 3, 4)], offset=[0.1, 0.2, 0.3], scale=[1.0, 2.0, 3.0]), ["batch"]),
    (_case("Scaler", [floats(3)], offset=[0.1, 0.2, 0.3], scale=[1.0, 2.0, 3.0]), ["axis0"]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n][0].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_case(number: int, data: st.DataObject) -> None:
    case, axes = CASES[number]
    checked = declared(case)
    assert [axis.name for axis in checked.access.axes()] == axes
    check_any_region(checked, data)


@settings(max_examples=3)
@given(data=st.data())
def test_cases_of_the_onnx_project(data: st.DataObject) -> None:
    cases = [case for op_type in sorted(OPERATORS) for case in node_cases(op_type, "ai.onnx.ml").values()]
    assert {case.op_type for case in cases} == {"ArrayFeatureExtractor", "Binarizer", "LabelEncoder"}
    for case in cases:
        checked = check_whole(case)
        check_law(checked, {0: Region.full(checked.results[0].shape)})
        check_axes(checked, data)
