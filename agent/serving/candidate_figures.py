"""Candidate figures: what this gateway has seen of a candidate and of the deployment that it may replace, and how far their
answers differ. Facts and rules; no door.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """How a candidate's answer to a request differs from that of the version that serves."""

    choice: bool
    """Whether another entry is the largest along the last axis of an output, as in classes; where an output has no numbers
    or no such axis, whether it differs at all."""
    largest: float
    """The largest difference between two numbers, as a share of the largest magnitude in the output; 0 where none can be
    compared."""


def compare_answers(serving: Mapping[str, Any], candidate: Mapping[str, Any]) -> AnswerDifference:
    """How the candidate's outputs differ from those of the version that serves."""
    choice, largest = serving.keys() != candidate.keys(), 0.0
    for name in serving.keys() & candidate.keys():
        one, other = np.asarray(serving[name]), np.asarray(candidate[name])
        found = _compare(one, other)
        choice, largest = choice or found.choice, max(largest, found.largest)
    return AnswerDifference(choice, largest)


def _compare(one: Array, other: Array) -> AnswerDifference:
    if one.shape != other.shape or one.dtype.kind not in "fiu" or other.dtype.kind not in "fiu":
        return AnswerDifference(not np.array_equal(one, other), 0.0)
    if not one.size:
        return AnswerDifference(False, 0.0)
    wide, against = one.astype(np.float64), other.astype(np.float64)
    # A difference from or to an infinity or a NaN has no size.
    finite = np.isfinite(wide) & np.isfinite(against)
    apart = np.abs(np.where(finite, wide, 0.0) - np.where(finite, against, 0.0))
    magnitude = float(np.max(np.abs(wide), where=np.isfinite(wide), initial=0.0))
    largest = float(np.max(apart, initial=0.0)) / (magnitude or 1.0)
    if one.ndim and one.shape[-1] > 1:
        return AnswerDifference(bool(np.any(wide.argmax(axis=-1) != against.argmax(axis=-1))), largest)
    return AnswerDifference(not np.array_equal(wide, against, equal_nan=True), largest)


@dataclass(slots=True)
class AnswerTally:
    """Answers of one version, and the time that they took."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds

    @property
    def mean_s(self) -> float | None:
        """The mean time of an answer; None before the first."""
        return self.seconds / self.count if self.count else None


@dataclass(slots=True)
class CandidateFigures:
    """What one gateway has seen since the candidate was deployed."""

    serving: AnswerTally = field(default_factory=AnswerTally)
    """Answers of the version that serves."""
    candidate: AnswerTally = field(default_factory=AnswerTally)
    """Answers of the candidate: to requests, or to copies of them."""
    fallbacks: int = 0
    """Requests of the candidate's share that the version that serves has answered, because the candidate could not."""
    last_failure: str = ""
    """Why the candidate could not answer the last of them, or the last copy."""
    compared: int = 0
    """Copies that the candidate has answered."""
    different: int = 0
    """Those of which the candidate has answered another choice (AnswerDifference.choice)."""
    largest_difference: float = 0.0
    """The largest difference of numbers, over all copies."""
    copy_errors: int = 0
    """Copies that the candidate could not answer."""
    copies_dropped: int = 0
    """Copies that were not made, because as many as may be were under way."""

    def note_copy(self, found: AnswerDifference, seconds: float) -> None:
        """Note the candidate's answer to a copy."""
        self.candidate.add(seconds)
        self.compared += 1
        self.different += found.choice
        self.largest_difference = max(self.largest_difference, found.largest)
