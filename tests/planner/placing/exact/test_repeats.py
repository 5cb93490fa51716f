"""Layers: one of each kind is searched, and all of the kind gain."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.exact.repeats import Layered, find_repeats, improve_repeats
from edgepart.planner.placing.problem.checker import violations
from edgepart.planner.placing.problem.schedule import PlacementFound, PlacementSchedule
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.every_schedule import placements, shortest
from tests.planner.placing.workloads import INF, workload

pytest.importorskip("ortools", reason="layers are searched with OR-tools, of the extra [exact]")


def layers(times: int, heads: int, *, memory_bytes: float = INF) -> Workload:
    """Heads between a task that all read and one that reads all, so many times; two equal machines."""
    rows: list[tuple[float, ...]] = [(1.0, 1.0)]
    kept = [1.0]
    tensors: list[tuple[int, tuple[int, ...], float]] = []
    for _ in range(times):
        split = len(rows) - 1
        join = split + heads + 1
        rows += [(10.0, 10.0)] * heads + [(1.0, 1.0)]
        kept += [10.0] * heads + [1.0]
        tensors.append((split, tuple(range(split + 1, join)), 100.0))
        tensors += [(head, (join,), 50.0) for head in range(split + 1, join)]
    return workload(rows, tensors, memory_bytes=(memory_bytes, memory_bytes), task_bytes=tuple(kept))


def searched(
    graph: Workload, start: PlacementSchedule, *, solvable: bool = True, seconds: float = 1e5
) -> Layered:
    ticks = count()
    parts = find_repeats(graph)
    assert parts
    return improve_repeats(
        graph, start, parts, clock=lambda: float(next(ticks)), until=seconds, solvable=lambda _: solvable
    )


def on_one(graph: Workload) -> PlacementSchedule:
    return dispatch(graph, (0,) * len(graph.tasks))


@pytest.mark.parametrize("solvable", [True, False])
def test_every_layer_gains_what_one_gains(solvable: bool) -> None:
    graph = layers(6, 4)
    start = on_one(graph)
    assert start.makespan_s == pytest.approx(1 + 6 * 41)
    found = searched(graph, start, solvable=solvable)
    assert found.schedule is not None
    # Of each layer two heads elsewhere: 1 s there, 2 x 10 s, half a second back for the last of them, and the join; in the
    # last layer that is where they are.
    assert found.schedule.makespan_s == pytest.approx(1 + 6 * (1 + 20 + 0.5 + 1) - 0.5)
    assert not violations(
        graph, PlacementFound(found.schedule.placement, found.schedule.makespan_s, found.schedule)
    )
    assert (found.kinds, found.pieces) == (2, 7)
    assert 0 < found.bound_s <= found.schedule.makespan_s


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=3), st.integers(0, 300))
def test_no_schedule_is_shorter_than_the_bound(rows: list[tuple[int, int]], nbytes: int) -> None:
    tensors: list[tuple[int, tuple[int, ...], float]] = []
    for layer in range(2):
        first = 3 * layer
        tensors.append((first, (first + 1, first + 2), float(nbytes)))
        tensors += [(first + 1, (first + 3,), float(nbytes)), (first + 2, (first + 3,), float(nbytes))]
    all_rows = [rows[0], *(2 * [rows[1], rows[-1], rows[0]])]
    graph = workload([(float(a), float(b)) for a, b in all_rows], tensors)
    start = on_one(graph)
    found = searched(graph, start)
    value_s = found.schedule.makespan_s if found.schedule else start.makespan_s
    assert found.bound_s <= shortest(graph, value_s) + 1e-9


def test_where_memory_is_short_over_all_layers_what_is_found_fits() -> None:
    graph = layers(4, 4, memory_bytes=110.0)  # 165 are kept
    start = dispatch(graph, next(iter(placements(graph))))
    found = searched(graph, start)
    assert found.bound_s == 0
    assert found.schedule is not None
    assert found.schedule.makespan_s < start.makespan_s
    assert not graph.short_bytes(found.schedule.placement)


def test_what_repeats_nothing_is_left_alone() -> None:
    graph = layers(3, 2)
    rows = tuple(
        replace(task, compute_s=(float(number), 1.0)) for number, task in enumerate(graph.tasks, start=1)
    )
    assert find_repeats(graph)
    assert not find_repeats(replace(graph, tasks=rows))


def test_without_time_nothing_is_found() -> None:
    graph = layers(3, 2)
    assert searched(graph, on_one(graph), seconds=0.0).schedule is None
