"""What a rounding of the inputs changes in a model's answer is told from what a wrong plan does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edgepart.agent.verify.input_rounding import ROUNDINGS_ALLOWED, find_unexplained, nudge_inputs
from edgepart.planner.errors import RequestError

Y = np.array([1.0, 0.5, 0.25], np.float32)


def off(by: float) -> dict[str, Any]:
    return {"y": Y + np.float32(by)}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_move_by_one_step_of_their_type(dtype: type[np.floating[Any]]) -> None:
    x = np.asarray([[1.0, -3.0], [0.0, 100.0]]).astype(dtype)
    moved = nudge_inputs({"x": x})["x"]
    assert moved.dtype == x.dtype and (moved != x).all()
    assert ((moved > x) == [[True, False], [True, False]]).all()
    assert (np.nextafter(moved, x) == x).all()


def test_what_has_no_last_digit_stays() -> None:
    given = {
        "i": np.arange(3),
        "b": np.array(True),
        "s": np.array(["a"], dtype=object),
        "n": np.ones(2, ml_dtypes.bfloat16),
        "q": [np.ones(1, np.float32)],
    }
    found = nudge_inputs(given)
    assert all(found[name] is value for name, value in given.items())
    assert nudge_inputs({"x": np.array(2.0, np.float32)})["x"].shape == ()


def test_a_difference_as_small_as_a_rounding_makes_is_none() -> None:
    assert find_unexplained(off(0.02), {"y": Y}, off(0.0), None) == [
        "y differs by 0.02 of its largest magnitude"
    ]
    assert find_unexplained(off(0.02), {"y": Y}, off(0.02 / ROUNDINGS_ALLOWED * 1.1), None) == []
    assert find_unexplained(off(0.02), {"y": Y}, off(0.02 / ROUNDINGS_ALLOWED * 0.9), None) != []
    assert find_unexplained(off(0.02), {"y": Y}, off(0.0), 0.1) == []


def test_each_output_is_judged_for_itself() -> None:
    expected = {"y": Y, "z": Y}
    found = find_unexplained({"y": Y + 0.02, "z": Y + 0.02}, expected, {"y": Y + 0.01, "z": Y}, None)
    assert [text.partition(" ")[0] for text in found] == ["z"]
    assert find_unexplained({"y": Y}, expected, expected, None) == ["z is missing"]


def test_where_a_rounding_changes_all_nothing_is_said() -> None:
    with pytest.raises(RequestError, match="another y where"):
        find_unexplained(off(0.5), {"y": Y}, off(0.2), None)
    with pytest.raises(RequestError):
        find_unexplained(off(0.5), {"y": Y}, {"y": Y * np.nan}, None)


def test_whole_numbers_are_the_same_or_not() -> None:
    first, second, third = ({"y": np.array([n])} for n in (1, 2, 3))
    assert find_unexplained(second, first, first, None) == ["y differs"]
    assert find_unexplained(first, first, second, None) == []
    with pytest.raises(RequestError):
        find_unexplained(second, first, third, None)
