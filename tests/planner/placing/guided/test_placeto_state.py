"""Placeto's episodes: what the network reads is what a plain twin reads off the schedule, and each step does one thing."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.errors import Infeasible
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.guided.placeto_state import (
    COLUMNS,
    MOST_PENALTY,
    Episode,
    placeto_graph,
    start_alone,
)
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.workloads import INF, workload, workloads

PAIR = workload([(2.0, 1.0), (2.0, 4.0)], [(0, (1,), 1.0)])


def by_maximum(values: list[float]) -> list[float]:
    most = max(map(abs, values), default=0.0)
    return [value / most if most else value for value in values]


def plain_state(graph: Workload, where: list[int], visited: list[int], current: int) -> list[list[float]]:
    """The state as sentences have it, one number at a time."""
    starts = dispatch(graph, where).start_s
    runs = [[s for s in task.compute_s if s < INF] for task in graph.tasks]
    columns = [
        by_maximum([sum(row) / len(row) for row in runs]),
        by_maximum([sum(t.nbytes for t in graph.tensors if t.source == n) for n in range(len(runs))]),
        by_maximum([task.memory_bytes for task in graph.tasks]),
        by_maximum([start - starts[current] for start in starts]),
        [float(n in visited) for n in range(len(runs))],
        [float(n == current) for n in range(len(runs))],
    ]
    for machine in range(len(graph.machines)):
        columns.append([float(one == machine) for one in where])
    return [list(row) for row in zip(*columns, strict=True)]


@given(workloads(6, 3, memory=True, partial=True, groups=True), st.data())
def test_states_are_those_of_a_plain_twin(drawn: Workload, data: st.DataObject) -> None:
    try:
        graph = placeto_graph(drawn)
    except Infeasible:
        return
    episode = Episode(graph, start_alone(graph))
    visited: list[int] = []
    while not episode.done:
        current = episode.current
        expected = plain_state(drawn, episode.where.tolist(), visited, current)
        np.testing.assert_allclose(episode.state(), expected, rtol=1e-5, atol=1e-6)
        machine = data.draw(st.sampled_from(np.flatnonzero(graph.able[current]).tolist()))
        before = episode.where.copy()
        episode.place(machine)
        visited.append(current)
        name = drawn.tasks[current].colocate
        for task, one in enumerate(drawn.tasks):
            moved = task == current or (name and one.colocate == name)
            assert episode.where[task] == (machine if moved else before[task])
    assert visited == list(drawn.order)
    assert episode.best_runtime <= episode.runtime


@given(workloads(7, 3))
def test_pools_are_the_closures_of_the_graph(drawn: Workload) -> None:
    graph = placeto_graph(drawn)
    plain = nx.DiGraph()
    plain.add_nodes_from(range(len(drawn.tasks)))
    plain.add_edges_from((source, task) for task, before in enumerate(drawn.before) for source in before)
    for task in plain:
        above, below = nx.ancestors(plain, task), nx.descendants(plain, task)
        beside = set(plain) - above - below - {task}
        for row, expected in zip(graph.pools[task], (above, below, beside), strict=True):
            assert set(np.flatnonzero(row)) == expected
        assert set(np.flatnonzero(graph.parents[task])) == set(plain.predecessors(task))


def test_the_runtime_is_in_units_of_the_fastest_machine_alone() -> None:
    graph = placeto_graph(PAIR)
    assert graph.alone_s == 4.0 and start_alone(graph).tolist() == [0, 0]
    assert Episode(graph, np.array([0, 0])).runtime == 1.0
    assert Episode(graph, np.array([1, 1])).runtime == pytest.approx(5 / 4)


@pytest.mark.parametrize(
    ("memory_bytes", "penalty"), [(INF, 0.0), (10.0, 0.0), (8.0, 20 * 0.25), (1.0, MOST_PENALTY)]
)
def test_what_lacks_memory_costs_by_how_much(memory_bytes: float, penalty: float) -> None:
    tasks = tuple(replace(task, memory_bytes=5.0) for task in PAIR.tasks)
    machines = tuple(replace(machine, memory_bytes=10.0) for machine in PAIR.machines)
    roomy = placeto_graph(replace(PAIR, tasks=tasks, machines=machines))
    tight = replace(
        roomy.workload, machines=tuple(replace(machine, memory_bytes=memory_bytes) for machine in machines)
    )
    found = Episode(replace(roomy, workload=tight), np.array([0, 0]))
    assert found.runtime == pytest.approx(1.0 + penalty)


def test_a_state_is_as_wide_as_the_cluster() -> None:
    graph = placeto_graph(PAIR)
    assert Episode(graph, start_alone(graph)).state().shape == (2, COLUMNS + 2)
