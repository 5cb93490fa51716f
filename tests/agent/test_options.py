"""What people type for the agent's options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.options import parse_cpus
from edgepart.planner.errors import UsageError


@given(st.frozensets(st.integers(0, 4095), min_size=1))
def test_a_list_of_cpus_is_read(cpus: frozenset[int]) -> None:
    assert parse_cpus(", ".join(map(str, cpus))) == cpus
    assert parse_cpus(f"{min(cpus)}-{max(cpus)}") == frozenset(range(min(cpus), max(cpus) + 1))


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1-", "1,,2", "99999", "4096", "0-4096"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--cpus"):
        parse_cpus(text)
