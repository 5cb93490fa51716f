"""Bounds: no schedule of any placement is shorter, and what each of them sees."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgepart.planner.placing.exact.bounds import path_bound
from edgepart.planner.placing.exact.chain_bound import chain_bound, cut_stretches, search_stretches
from edgepart.planner.placing.exact.pieces import PiecePaths
from edgepart.planner.placing.exact.window_bound import window_bound
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.every_schedule import placements, shortest
from tests.planner.placing.workloads import INF, workload, workloads

ANY = workloads(7, 3, partial=True, groups=True, media=True) | workloads(7, 3)


def chained(graph: Workload, share: float = 0.5) -> float:
    pytest.importorskip("ortools", reason="the chain bound needs OR-tools, of the extra [exact]")
    return chain_bound(graph, clock=lambda: 0.0, until=1.0, share=share)


def searched(graph: Workload, share: float, every: int) -> float:
    pytest.importorskip("ortools", reason="stretches are searched by OR-tools, of the extra [exact]")
    ways = PiecePaths(graph, path_bound, cut_stretches(graph, share, every))
    return search_stretches(ways, lambda: 0.0, 1.0)


@settings(max_examples=150)
@given(ANY, st.sampled_from([0.0, 0.5, 1.0]))
def test_no_schedule_is_shorter(graph: Workload, share: float) -> None:
    assume(next(placements(graph), None) is not None)
    least_s = shortest(graph) * (1 + 1e-9)
    assert window_bound(graph) <= least_s
    assert chained(graph, share) <= least_s


@settings(max_examples=60)
@given(ANY, st.sampled_from([0.5, 1.0]), st.sampled_from([1, 2]))
def test_no_schedule_is_shorter_than_stretches_that_are_searched(
    graph: Workload, share: float, every: int
) -> None:
    assume(next(placements(graph), None) is not None)
    # The longest path of the whole graph is no law here: of several that are as long, the stretches follow one, and what
    # runs beside their ends counts nowhere.
    before = PiecePaths(graph, path_bound, cut_stretches(graph, share, every)).shortest(lower=True)[0]
    assert before * (1 - 1e-9) <= searched(graph, share, every) <= shortest(graph) * (1 + 1e-9)


@given(ANY, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([1, 2]))
def test_stretches_share_no_task_but_their_ends(graph: Workload, share: float, every: int) -> None:
    parts = cut_stretches(graph, share, every)
    inner = [task for part in parts for n, task in enumerate(part.tasks) if n != part.entry]
    assert len({*inner}) == len(inner)
    for one, other in pairwise(parts):
        assert one.exit is not None and other.entry is not None
        assert one.tasks[one.exit] == other.tasks[other.entry]


def layers(count: int) -> Workload:
    """One after the other: a first task of 1 s, and four of 4 s, whose inputs take 3 s to the other machine, and whose
    outputs 1 s back. The first ones, and the last task of all, are on the first machine. One more task runs beside all."""
    tasks, tensors = [(1.0, INF)], []
    for first in range(0, 5 * count, 5):
        tasks += [*[(4.0, 4.0)] * 4, (1.0, INF)]
        tensors += [(first, tuple(range(first + 1, first + 5)), 300.0)]
        tensors += [(task, (first + 5,), 100.0) for task in range(first + 1, first + 5)]
    return workload(
        [*tasks, (1.0, INF)], [*tensors, (0, (5 * count + 1,), 0.0), (5 * count + 1, (5 * count,), 0.0)]
    )


def test_a_machine_has_less_time_by_what_moves_there_and_back() -> None:
    one = layers(1)
    assert path_bound(one) == 6.0
    assert (
        12.0 < window_bound(one) <= 12.5
    )  # The first machine has x s of 16 and 3 s more, the other 16 - x and 6 more.
    assert shortest(one) == 14.0


def test_what_takes_no_time_somewhere_uses_no_machine() -> None:
    chain = workload([(0.0, 0.0), (0.0, 1.0), (0.0, 0.0)], [(0, (1,), 100.0), (1, (2,), 100.0)])
    assert window_bound(chain) == chained(chain) == 0.0


def test_stretches_count_one_after_the_other() -> None:
    assert path_bound(layers(4)) < window_bound(layers(4)) < 39.0
    assert 44.0 < chained(layers(4)) <= 4 * 14.0 + 1.0


def test_what_is_searched_is_as_long_as_the_shortest_schedule_of_each_stretch() -> None:
    assert searched(layers(4), 0.5, 1) == pytest.approx(4 * 13.0 + 1.0, rel=1e-4)
