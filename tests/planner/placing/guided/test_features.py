"""Features: they have no unit, know no numbers of machines, and agree with what the placers compute."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given

from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.engine.dispatch import upward_ranks
from edgepart.planner.placing.guided.features import (
    MACHINE_FEATURES,
    NEIGHBOURS,
    PAIR_FEATURES,
    TASK_FEATURES,
    describe,
)
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.workloads import workload, workloads

DRAWN = [draw_workload(family, Random(3), 60, 3) for family in ("cells", "experts", "sequence")]


@given(workloads(8, 4, memory=True, partial=True, groups=True))
def test_all_are_finite_and_of_their_shapes(graph: Workload) -> None:
    found, tasks, machines = describe(graph), len(graph.tasks), len(graph.machines)
    assert found.tasks.shape == (tasks, TASK_FEATURES) and found.machines.shape == (
        machines,
        MACHINE_FEATURES,
    )
    assert found.pairs.shape == (tasks, machines, PAIR_FEATURES)
    assert all(np.isfinite(one).all() for one in (found.tasks, found.machines, found.pairs))
    for number, tensor in enumerate(graph.tensors):
        expected = [[graph.transfer_s(tensor, a, b) for b in range(machines)] for a in range(machines)]
        assert found.moves_s[number] == pytest.approx(np.array(expected))


@given(workloads(8, 4))
def test_ranks_are_those_of_heft(graph: Workload) -> None:
    assert describe(graph).ranks == pytest.approx(upward_ranks(graph))


@pytest.mark.parametrize("graph", DRAWN, ids=lambda graph: graph.name)
def test_machines_that_are_all_a_thousand_times_as_slow_look_the_same(graph: Workload) -> None:
    slow = replace(
        graph,
        tasks=tuple(replace(task, compute_s=tuple(1e3 * s for s in task.compute_s)) for task in graph.tasks),
        bytes_per_s=tuple(tuple(one / 1e3 for one in row) for row in graph.bytes_per_s),
        latency_s=tuple(tuple(1e3 * one for one in row) for row in graph.latency_s),
    )
    fast, found = describe(graph), describe(slow)
    for name, values in fast.inputs.items():
        assert found.inputs[name] == pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize("order", list(permutations(range(3)))[1:])
def test_other_numbers_of_machines_are_other_places_of_the_same_features(order: tuple[int, ...]) -> None:
    graph = DRAWN[0]
    turned = replace(
        graph,
        machines=tuple(graph.machines[m] for m in order),
        tasks=tuple(replace(t, compute_s=tuple(t.compute_s[m] for m in order)) for t in graph.tasks),
        bytes_per_s=tuple(tuple(graph.bytes_per_s[a][b] for b in order) for a in order),
        latency_s=tuple(tuple(graph.latency_s[a][b] for b in order) for a in order),
    )
    before, found = describe(graph), describe(turned)
    assert found.tasks == pytest.approx(before.tasks, abs=1e-5)
    assert found.machines == pytest.approx(before.machines[list(order)], abs=1e-5)
    assert found.pairs == pytest.approx(before.pairs[:, list(order)], abs=1e-5)


@pytest.mark.parametrize("graph", DRAWN, ids=lambda graph: graph.name)
def test_neighbours_are_those_between_which_most_bytes_move(graph: Workload) -> None:
    found = describe(graph)
    for task in range(len(graph.tasks)):
        moved: dict[int, float] = {}
        for number in graph.written[task]:
            for reader in graph.tensors[number].readers:
                moved[reader] = moved.get(reader, 0.0) + graph.tensors[number].nbytes
        heaviest = sorted(moved, key=lambda other: (-moved[other], other))[:NEIGHBOURS]
        assert found.behind[task].tolist() == heaviest + [task] * (NEIGHBOURS - len(heaviest))
        for other in heaviest[:1]:
            if len(graph.before[other]) <= NEIGHBOURS:
                assert task in found.before[other]


def test_a_graph_without_edges_or_costs_has_features() -> None:
    found = describe(workload([(0.0,)], []))
    assert found.unit_s == 1.0 and np.isfinite(found.tasks).all()
