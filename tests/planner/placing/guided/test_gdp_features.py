"""What GDP's network is told: the graph's edges as rows, the same for a graph however fast, and several graphs apart."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from edgepart.planner.errors import NotInstalled
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.guided.gdp_features import (
    MOST_NEIGHBOURS,
    SEGMENT,
    features_of,
    joined,
    log_odds,
    width_of,
)
from edgepart.planner.placing.guided.trained import trained_network
from edgepart.planner.placing.problem.networks import NetworkCard, NeuralNetwork
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.workloads import workload, workloads


@settings(max_examples=40, deadline=None)
@given(workloads(12, 4, memory=True, partial=True, groups=True))
def test_rows_are_tasks_with_their_neighbours(any_one: Workload) -> None:
    found = features_of(any_one)
    count = len(any_one.tasks)
    assert len(found.ops) % SEGMENT == 0 and found.real.sum() == count
    assert found.numbers.shape == (len(found.ops), width_of(len(any_one.machines)))
    assert np.isfinite(found.numbers).all() and not found.numbers[count:].any()
    task_of = dict(enumerate(any_one.order))
    for row, task in task_of.items():
        for lists, expected in ((found.sources, any_one.before), (found.readers, any_one.after)):
            assert {task_of[other] for other in lists[row].tolist() if other < len(found.ops)} == {
                *expected[task]
            }
    for column, machine in enumerate(found.machines[0].tolist()):
        for row, task in task_of.items():
            assert found.able[row, column] == (any_one.tasks[task].compute_s[machine] < inf)


@settings(max_examples=40, deadline=None)
@given(workloads(12, 4, groups=True))
def test_what_must_be_together_is_decided_once(any_one: Workload) -> None:
    found = features_of(any_one)
    columns = np.random.default_rng(0).integers(len(any_one.machines), size=(3, len(found.ops)))
    for placement in found.placements(columns).tolist():
        for group in any_one.groups:
            assert len({placement[task] for task in group}) == 1
    row = found.rows[0][any_one.groups[0][0]]
    assert found.placements(columns)[0, any_one.groups[0][0]] == found.machines[0][columns[0, row]]


def test_a_graph_ten_times_as_slow_looks_the_same() -> None:
    drawn = draw_workload("inception", Random(0), 60, 3)
    slow = replace(
        drawn,
        tasks=tuple(replace(task, compute_s=tuple(10 * s for s in task.compute_s)) for task in drawn.tasks),
        bytes_per_s=tuple(tuple(speed / 10 for speed in row) for row in drawn.bytes_per_s),
        latency_s=tuple(tuple(10 * s for s in row) for row in drawn.latency_s),
    )
    assert np.allclose(features_of(drawn).numbers, features_of(slow).numbers, atol=1e-5)


def test_the_fastest_machine_has_the_first_column() -> None:
    found = features_of(workload([(4.0, 1.0, 2.0)] * 3, [(0, (1, 2), 10.0)]))
    assert found.machines[0].tolist() == [1, 2, 0]
    assert found.placements(np.zeros(len(found.ops), np.int64)).tolist() == [1, 1, 1]


def test_of_many_neighbours_those_with_the_most_bytes_are_told() -> None:
    many = MOST_NEIGHBOURS + 4
    hub = workload([(1.0,)] * (many + 1), [(task, (many,), float(task)) for task in range(many)])
    found = features_of(hub)
    assert sorted(found.sources[many].tolist()) == list(range(4, many))


def test_joined_graphs_lie_one_behind_another() -> None:
    parts = [features_of(draw_workload(family, Random(1), 150, 3)) for family in ("experts", "branches")]
    found, at = joined(parts), len(parts[0].ops)
    assert found.continues.tolist() == [0.0, 1.0, *parts[1].continues.tolist()]
    assert (found.rows[1] == parts[1].rows[0] + at).all()
    for row, neighbours in enumerate(parts[1].sources.tolist()):
        told = {one - at for one in found.sources[at + row].tolist() if one < len(found.ops)}
        assert told == {one for one in neighbours if one < len(parts[1].ops)}


def test_odds_add_up_to_one() -> None:
    odds = log_odds(np.array([[0.0, 1.0, -1e9], [1000.0, 1000.0, 1000.0]]))
    assert np.exp(odds).sum(1) == pytest.approx([1.0, 1.0])
    assert odds[1] == pytest.approx([-np.log(3)] * 3)


def test_a_network_for_other_machines_is_none() -> None:
    network = NeuralNetwork(NetworkCard("gdp", 4, ("attention",), 0, "", "2026-01-01", ""), lambda inputs: [])
    asked = Asked(lambda: 0.0, networks=lambda name: network)
    assert trained_network(asked, "gdp", 4) is network
    with pytest.raises(NotInstalled, match=r"on 4 machines.* has 3"):
        trained_network(asked, "gdp", 3)
    with pytest.raises(NotInstalled, match="without any"):
        trained_network(replace(asked, networks=None), "gdp", 4)
