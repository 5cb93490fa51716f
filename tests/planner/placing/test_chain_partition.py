"""Stages on devices: as good as trying every division in every order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.placing.chain_partition import Loads, balance, balance_in_order

INF = float("inf")
PARTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
SPEEDS = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def loads_of(parts: list[int], speeds: list[int], crossing: list[int], room: int) -> list[Loads]:
    """A stage takes its parts by speed, or what crosses its ends, whichever is longer; too many parts have no room."""
    ends = np.cumsum([0, *parts])
    sums = (ends[None, :] - ends[:, None]).astype(float)
    moved = np.array([0, *crossing, 0], dtype=float)
    moving = np.maximum(moved[:, None], moved[None, :])
    return [np.where(sums <= room, np.maximum(sums / speed, moving), INF) for speed in speeds]


def every_division(
    loads: list[Loads], count: int, orders: Iterable[tuple[int, ...]] | None = None
) -> Iterator[float]:
    places = loads[0].shape[0]
    for order in permutations(range(len(loads)), count) if orders is None else orders:
        for cuts in combinations(range(1, places - 1), count - 1):
            ends = (0, *cuts, places - 1)
            yield max(loads[d][ends[n], ends[n + 1]] for n, d in enumerate(order))


@given(PARTS, SPEEDS, st.data())
@settings(max_examples=150)
def test_stages_are_as_good_as_every_division(
    parts: list[int], speeds: list[int], data: st.DataObject
) -> None:
    crossing = data.draw(st.lists(st.integers(0, 6), min_size=len(parts) - 1, max_size=len(parts) - 1))
    loads = loads_of(parts, speeds, crossing, data.draw(st.integers(5, 60)))
    found = {len(one.stages): one for one in balance(loads)}
    for count in range(1, len(speeds) + 1):
        best = min(every_division(loads, count), default=INF)
        assert (found[count].busiest if count in found else INF) == best
    for one in found.values():
        ends = [(begin, end) for _, begin, end in one.stages]
        assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]
        assert ends[-1][1] == len(parts)
        assert len({device for device, _, _ in one.stages}) == len(ends)
        assert max(loads[d][begin, end] for d, begin, end in one.stages) == one.busiest


@given(PARTS, SPEEDS, st.data())
@settings(max_examples=100)
def test_stages_in_order_are_as_good_as_every_division_in_order(
    parts: list[int], speeds: list[int], data: st.DataObject
) -> None:
    crossing = data.draw(st.lists(st.integers(0, 6), min_size=len(parts) - 1, max_size=len(parts) - 1))
    loads = loads_of(parts, speeds, crossing, data.draw(st.integers(5, 60)))
    inner = [np.where(np.triu(np.ones(load.shape, dtype=bool), 1), load, INF) for load in loads]
    best = INF
    for count in range(1, len(speeds) + 1):
        for order in combinations(range(len(speeds)), count):
            best = min(
                [best, *every_division([loads[d] for d in order], count, orders=[tuple(range(count))])]
            )
    found = list(balance_in_order(inner))
    assert min((one.busiest for one in found), default=INF) == best
    for one in found:
        assert [d for d, _, _ in one.stages] == sorted(d for d, _, _ in one.stages)
        assert max(loads[d][begin, end] for d, begin, end in one.stages) == one.busiest
        assert sum(end - begin for _, begin, end in one.stages) == len(parts)


def test_many_devices_are_all_used() -> None:
    loads = loads_of([1] * 40, [1] * 20, [0] * 39, 99)
    *_, last = balance(loads)
    assert len(last.stages) == 20 and last.busiest == 2.0


def test_a_slow_device_gets_little_and_a_heavy_place_is_no_cut() -> None:
    loads = loads_of([4, 4, 4, 4], [3, 1], [9, 9, 1], 99)
    (_, both) = balance(loads)
    assert both.stages == ((0, 0, 3), (1, 3, 4))
    assert both.busiest == pytest.approx(4.0)
