"""Input rounding: compares a difference of answers with how much the model's own answer changes when its inputs change by
one rounding. Rules over numpy.

Devices add numbers in other orders than one session does. If that makes more of a difference than it should, the plan or
the inputs may be the cause: a detector that finds nothing in noise answers with numbers near zero, in which every rounding
shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgepart.agent.verify.same_answer import Values, differences, largest_difference
from edgepart.planner.errors import RequestError

ROUNDINGS_ALLOWED = 10.0
"""A right answer may be off by this many times the effect of one rounding of the inputs, as there are roundings in every
layer. A larger number lets plans pass that are wrong by little; a smaller one refuses right plans."""


def nudge_inputs(inputs: Values) -> dict[str, Any]:
    """The inputs with their floating-point numbers one step higher or lower, in turns."""
    return {name: _nudge(value) for name, value in inputs.items()}


def _nudge(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    upwards = np.arange(value.size).reshape(value.shape) % 2 == 0
    return np.nextafter(value, np.where(upwards, np.inf, -np.inf).astype(value.dtype))


def find_unexplained(got: Values, expected: Values, swayed: Values, tolerance: float | None) -> list[str]:
    """The `differences` that a rounding does not explain; `swayed` is the model's answer to the inputs `nudge_inputs`.
    Raises RequestError if these inputs make an output as good as random."""
    found = []
    for name in expected:
        mine, theirs, moved = ({name: one[name]} if name in one else {} for one in (got, expected, swayed))
        if not differences(mine, theirs, tolerance):
            continue
        by = ROUNDINGS_ALLOWED * largest_difference(moved, theirs)
        # Values other than floating-point numbers have no distance: they are the same or not.
        if not by < 1 or (by == 0 and differences(moved, theirs)):
            raise RequestError(
                f"the model itself gives another {name} where these inputs differ by one rounding"
            )
        found += differences(mine, theirs, by)
    return found
