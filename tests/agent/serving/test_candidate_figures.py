"""How answers of a candidate differ from those of the version that serves: a table, and laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgepart.agent.serving.candidate_figures import (
    AnswerDifference,
    CandidateFigures,
    compare_answers,
)

SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], np.float32)
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("one", "other", "choice", "largest"),
    [
        (SCORES, SCORES, False, 0.0),
        (SCORES, SCORES + np.float32(0.07), False, 0.1),
        (SCORES, SCORES[:, ::-1], True, 0.2 / 0.7),
        (np.array([3, 1]), np.array([3, 2]), False, 1 / 3),
        (np.array([1.0]), np.array([1.5]), True, 0.5),
        (np.array(2.0), np.array(2.0), False, 0.0),
        (np.array([0.0, 0.0]), np.array([0.0, 2.0]), True, 2.0),
        (np.array([INF, 1.0]), np.array([INF, 1.0]), False, 0.0),
        (np.array([NAN, 2.0]), np.array([NAN, 1.0]), False, 0.5),
        (np.array([1.0, 2.0]), np.array([1.0, NAN]), False, 0.0),
        (np.zeros((0, 3)), np.zeros((0, 3)), False, 0.0),
        (np.zeros((2, 3)), np.zeros((2, 4)), True, 0.0),
        (np.array([True, False]), np.array([True, True]), True, 0.0),
        (np.array(["a"], object), np.array(["b"], object), True, 0.0),
        (np.array(["a"], object), np.array(["a"], object), False, 0.0),
    ],
)
def test_differences(one: Any, other: Any, choice: bool, largest: float) -> None:
    found = compare_answers({"y": one}, {"y": other})
    assert found.choice is choice and found.largest == pytest.approx(largest, rel=1e-6)


def test_the_worst_output_counts_and_another_set_of_outputs_is_a_difference() -> None:
    assert compare_answers(
        {"a": SCORES, "b": SCORES}, {"a": SCORES, "b": 2 * SCORES}
    ).largest == pytest.approx(1)
    assert compare_answers({"a": SCORES}, {"a": SCORES, "b": SCORES}).choice
    assert compare_answers({"a": SCORES, "b": SCORES}, {"a": SCORES}).choice


numbers = arrays.arrays(np.float32, (2, 3), elements=st.floats(width=32))


@given(numbers, numbers)
def test_any_two_answers_can_be_compared_and_an_answer_is_like_itself(one: Any, other: Any) -> None:
    assert compare_answers({"y": one}, {"y": one}) == AnswerDifference(False, 0.0)
    found = compare_answers({"y": one}, {"y": other})
    assert 0 <= found.largest < np.inf


def test_what_is_counted() -> None:
    seen = CandidateFigures()
    assert seen.candidate.mean_s is None
    seen.note_copy(AnswerDifference(True, 0.25), 0.1)
    seen.note_copy(AnswerDifference(False, 0.5), 0.3)
    assert (seen.compared, seen.different, seen.largest_difference) == (2, 1, 0.5)
    assert seen.candidate.mean_s == pytest.approx(0.2) and seen.serving.count == 0
