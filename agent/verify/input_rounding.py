"""Sway: what a model's own answer moves by when its inputs move by one rounding. Rules over numpy.

Devices add up in other orders than one session does. Where that makes more of a difference than it should, it may be the
plan or the inputs: a detector that sees nothing in noise says so with numbers near zero, in which every rounding shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgepart.agent.verify.same_answer import Values, differences, largest_difference
from edgepart.planner.errors import RequestError

SWAY = 10.0
"""Times what one rounding of the inputs makes, another right answer may be off: there are roundings in every layer. More
lets plans pass that are wrong by little; less refuses right ones."""


def nudged(inputs: Values) -> dict[str, Any]:
    """The inputs with their numbers of floating point one step higher or lower, in turns."""
    return {name: _nudged(value) for name, value in inputs.items()}


def _nudged(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    upwards = np.arange(value.size).reshape(value.shape) % 2 == 0
    return np.nextafter(value, np.where(upwards, np.inf, -np.inf).astype(value.dtype))


def faults(got: Values, expected: Values, swayed: Values, tolerance: float | None) -> list[str]:
    """As `differences`, but for what a rounding explains, of a model that answers `swayed` to its inputs `nudged`.
    RequestError where an output is as good as chance with these inputs."""
    found = []
    for name in expected:
        mine, theirs, moved = ({name: one[name]} if name in one else {} for one in (got, expected, swayed))
        if not differences(mine, theirs, tolerance):
            continue
        by = SWAY * largest_difference(moved, theirs)
        # What is no floating point has no distance: it is the same, or it is not.
        if not by < 1 or (by == 0 and differences(moved, theirs)):
            raise RequestError(
                f"the model itself gives another {name} where these inputs differ by one rounding"
            )
        found += differences(mine, theirs, by)
    return found
