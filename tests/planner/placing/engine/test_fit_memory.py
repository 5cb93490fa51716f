"""Placements made to fit, and what is said if none was found."""

from __future__ import annotations

import pytest

from edgepart.planner.errors import Infeasible
from edgepart.planner.placing.engine.fit_memory import fit
from tests.planner.placing.workloads import workload


def test_what_was_searched_to_its_end_does_not_fit() -> None:
    """Two of three do not go on one machine, although the three are fewer bytes than both machines have."""
    whole = workload([(1.0, 1.0)] * 3, [], memory_bytes=(7.0, 7.0), task_bytes=(4.0, 4.0, 4.0))
    with pytest.raises(Infeasible, match=r"does not fit .*, whichever machine each task is on"):
        fit(whole, (0, 0, 0))


def test_a_search_that_was_given_up_proves_nothing() -> None:
    """All sizes are even and half of their sum is odd, so that nothing fits; but packing cannot see that."""
    sizes = tuple(2.0 * (1000 + 37 * n % 501) for n in range(59))
    half = sum(sizes) / 2
    assert half % 2 == 1
    odd = workload([(1.0, 1.0)] * len(sizes), [], memory_bytes=(half, half), task_bytes=sizes)
    with pytest.raises(Infeasible, match=r"no placement that fits .* was found in 50,000 steps"):
        fit(odd, (0,) * len(sizes))
