"""Gathering: a story, and laws over any arrivals, ends and waits."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.serving.gathering import RUNS_AT_ONCE, GatherLimits, GatherLine
from edgepart.agent.serving.stacked_rows import cut, rows_of, shaped, stack
from edgepart.planner.errors import InternalError


def test_a_run_begins_when_it_is_full_or_the_delay_is_over_or_the_last_run_ends() -> None:
    line = GatherLine(GatherLimits(rows=3, delay_s=0.5))
    assert line.next(0.0) == () and line.wake_at == inf
    line.arrive(1, 1, 10.0, 70.0)
    assert line.next(10.4) == () and line.wake_at == 10.5
    assert line.next(10.5) == (1,)
    line.arrive(2, 1, 10.6, 70.0)
    line.arrive(3, 1, 10.6, 70.0)
    assert line.next(12.0) == () and line.wake_at == inf  # It gathers while a run is under way, ...
    line.end()
    assert line.next(12.0) == (2, 3)  # ... and begins as soon as that one has ended.
    line.arrive(4, 2, 12.1, 70.0)
    line.arrive(5, 2, 12.1, 70.0)
    assert line.next(12.1) == (4,)  # Full: 5 would be too much.
    line.arrive(6, 3, 12.2, 70.0)
    assert line.next(12.2) == ()  # Full, but enough runs are under way.
    line.end()
    assert line.next(12.2) == (5,)
    line.end()
    line.end()
    assert line.next(12.2) == (6,) and not line.is_empty
    line.end()
    assert line.is_empty


def test_a_request_waits_no_longer_than_half_of_its_time() -> None:
    line = GatherLine(GatherLimits(rows=8, delay_s=5.0))
    line.arrive(1, 1, 0.0, 60.0)
    line.arrive(2, 1, 0.0, 1.0)
    assert line.wake_at == 0.5
    line.withdraw(2)
    line.withdraw(2)
    assert line.wake_at == 5.0 and line.next(4.0) == ()


@pytest.mark.parametrize("rows", [0, 9])
def test_what_cannot_be_gathered_is_a_fault(rows: int) -> None:
    with pytest.raises(InternalError):
        GatherLine(GatherLimits(8, 0.0)).arrive(1, rows, 0.0, 1.0)
    with pytest.raises(InternalError):
        GatherLine(GatherLimits(8, 0.0)).end()


STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "wait", "end", "withdraw"]), st.integers(1, 4)),
    max_size=80,
)


@given(st.integers(4, 6), st.sampled_from([0.0, 1.5, 10.0]), STEPS)
def test_each_request_is_run_once_in_order_in_time_and_never_with_too_many_rows(
    most: int, delay_s: float, steps: list[tuple[str, int]]
) -> None:
    line, now, number = GatherLine(GatherLimits(most, delay_s)), 0.0, 0
    run: list[int] = []
    waiting: dict[int, tuple[int, float]] = {}
    """The rows of each request that waits, and the time when it is due."""
    for step, size in [*steps, *[("wait", 20), ("end", 1)] * len(steps)]:
        if step == "arrive":
            number += 1
            line.arrive(number, size, now, now + 8.0)
            waiting[number] = size, now + min(delay_s, 4.0)
        elif step == "wait":
            now += size
        elif step == "end" and line.under_way:
            line.end()
        elif step == "withdraw" and waiting:
            line.withdraw(gone := min(waiting))
            del waiting[gone]
        while numbers := line.next(now):
            rows = [waiting.pop(one) for one in numbers]
            assert sum(size for size, _ in rows) <= most
            run += numbers
        assert line.under_way <= RUNS_AT_ONCE
        assert bool(waiting) or not line.wake_at < inf
        if not line.under_way:
            assert all(due > now for _, due in waiting.values()), "a request waits though nothing is run"
            assert sum(size for size, _ in waiting.values()) < most, "a full run waits"
    assert run == sorted(set(run)) and not waiting


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(0, 3), st.randoms())
def test_rows_stay_intact(counts: list[int], padding: int, chance: object) -> None:
    requests = [
        {"x": np.full((count, 2), number, np.float32), "t": np.full((count,), str(number), object)}
        for number, count in enumerate(counts)
    ]
    rows = sum(counts) + padding
    stacked = stack(requests, rows)
    found = rows_of(stacked)
    assert found is not None and found[0] == rows
    assert np.array_equal(stacked["x"][sum(counts) :], np.full((padding, 2), len(counts) - 1))
    parts = cut({"y": stacked["x"] * 2, "t": stacked["t"]}, counts, rows)
    assert not isinstance(parts, str)
    for request, part in zip(requests, parts, strict=True):
        assert np.array_equal(part["y"], request["x"] * 2) and np.array_equal(part["t"], request["t"])
        assert part["y"].base is None, "an answer holds the memory of all others"


def test_what_has_no_rows_is_not_stacked() -> None:
    row = np.zeros((2, 3), np.float32)
    assert rows_of({"x": row, "n": np.zeros((1,))}) is None
    assert rows_of({"x": np.float32(1) * np.ones(())}) is None
    assert rows_of({}) is None
    assert rows_of({"x": row}) != rows_of({"x": row.astype(np.float64)})
    assert rows_of({"x": row}) != rows_of({"x": row[:, :2]})
    assert shaped({"x": row}, 7)["x"].shape == (7, 3)
    assert "no row for each" in str(cut({"y": row}, [1, 2], 3))
    assert "no row for each" in str(cut({"y": [row]}, [1, 2], 3))
