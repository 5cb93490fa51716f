"""The comparison of answers: when two are the same."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from benchmarks.comparing import TOLERANCE, differences, largest_difference

FLOATS = np.array([0.5, -4.0], np.float32)


@pytest.mark.parametrize(
    ("got", "fault"),
    [
        ({}, "is missing"),
        ({"y": FLOATS[:1]}, "expected float32"),
        ({"y": FLOATS.astype(np.float64)}, "expected float32"),
        ({"y": FLOATS + np.float32(4 * 2 * TOLERANCE)}, "differs by 0.0002"),
        ({"y": np.array([0.5, math.nan], np.float32)}, "differs by nan"),
        ({"y": FLOATS + np.float32(4 * 0.5 * TOLERANCE)}, None),
        ({"y": FLOATS, "more": FLOATS}, None),
    ],
)
def test_floats_within_the_largest_magnitude(got: dict[str, Any], fault: str | None) -> None:
    found = differences(got, {"y": FLOATS})
    assert (fault in found[0] and len(found) == 1) if fault else not found


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, object])
def test_everything_else_is_equal_or_not(dtype: type) -> None:
    expected: Any = np.array([1, 0], dtype)
    assert not differences({"y": expected.copy()}, {"y": expected})
    assert differences({"y": expected[::-1]}, {"y": expected}) == ["y differs"]


def test_half_floats_may_differ_more_and_a_tolerance_replaces_both() -> None:
    half, near = np.array([1.0], np.float16), np.array([1.004], np.float16)
    assert not differences({"y": near}, {"y": half})
    assert differences({"y": near}, {"y": half}, 1e-3)


def test_zeros_have_no_magnitude_to_compare_with() -> None:
    zeros = np.zeros(2, np.float32)
    assert not differences({"y": zeros}, {"y": zeros})
    assert differences({"y": zeros + np.float32(1e-9)}, {"y": zeros})


def test_the_largest_difference_is_over_all_outputs() -> None:
    expected = {"y": FLOATS, "z": 2 * FLOATS, "n": np.array([1])}
    got = {"y": FLOATS, "z": 2 * FLOATS + np.float32(0.08), "n": np.array([2])}
    assert largest_difference(got, expected) == pytest.approx(0.01, rel=1e-4)
    assert math.isnan(largest_difference({"z": 2 * FLOATS, "y": FLOATS[:1]}, {"z": 2 * FLOATS, "y": FLOATS}))


def test_types_narrower_than_float16_may_differ_by_more_steps_of_their_own() -> None:
    brain = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    assert not differences({"y": brain * np.asarray(1.01, ml_dtypes.bfloat16)}, {"y": brain})
    assert differences({"y": brain * np.asarray(1.2, ml_dtypes.bfloat16)}, {"y": brain})
    nibbles = np.array([1, 2], ml_dtypes.int4)
    assert differences({"y": nibbles[::-1]}, {"y": nibbles}) == ["y differs"]


def test_a_nan_or_an_infinity_is_right_where_the_other_has_it() -> None:
    odd = np.array([math.nan, math.inf, 1.0], np.float32)
    assert not differences({"y": odd.copy()}, {"y": odd})
    assert differences({"y": odd[[1, 0, 2]]}, {"y": odd})
    assert differences({"y": -odd}, {"y": odd})


@pytest.mark.parametrize(
    ("got", "same"),
    [
        ([FLOATS, None], True),
        ([FLOATS], False),
        ([FLOATS, FLOATS], False),
        ([2 * FLOATS, None], False),
        (None, False),
        (FLOATS, False),
    ],
)
def test_sequences_are_compared_item_by_item(got: Any, same: bool) -> None:
    assert (not differences({"y": got}, {"y": [FLOATS, None]})) is same


def test_maps_are_compared_key_by_key() -> None:
    assert not differences({"y": [{"a": 1.0}]}, {"y": [{"a": 1.0}]})
    assert differences({"y": [{"a": 1.0}]}, {"y": [{"a": 2.0}]})
    assert differences({"y": [{"b": 1.0}]}, {"y": [{"a": 1.0}]})


def test_a_map_is_one_output_with_one_scale() -> None:
    """The tolerance is that of the whole map, so a class of tiny probability may be off by as much as the others."""
    assert not differences({"y": [{0: 0.9982251, 1: 8.106e-6}]}, {"y": [{0: 0.9982251, 1: 8.046e-6}]})
    assert differences({"y": [{0: 0.9982251, 1: 8.1e-6}]}, {"y": [{0: 0.9982251, 1: 8.1e-4}]})
