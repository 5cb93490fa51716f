"""The product's own comparison, for benchmarks: the answers of one session (agent/verify/reference.py), and
whether two answers are the same (agent/verify/same_answer.py, input_rounding.py)."""

from __future__ import annotations

from edgepart.agent.verify.input_rounding import find_unexplained, nudge_inputs
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
    "find_unexplained",
    "largest_difference",
    "nudge_inputs",
    "run_alone",
    "tolerance_for",
]
