"""The product's own comparison, for benchmarks: the answers of one session (agent/verify/reference.py), and
whether two answers are the same (agent/verify/same_answer.py)."""

from __future__ import annotations

from edgepart.agent.verify.reference import run_alone
from edgepart.agent.verify.same_answer import (
    TOLERANCE,
    TOLERANCE_FLOAT16,
    Values,
    differences,
    largest_difference,
    tolerance_for,
)

__all__ = [
    "TOLERANCE",
    "TOLERANCE_FLOAT16",
    "Values",
    "differences",
    "largest_difference",
    "run_alone",
    "tolerance_for",
]
