"""Decoding: without a network it is list scheduling; with one, machines are drawn by the softmax of the scores."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from edgepart.planner.errors import Infeasible
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.families import FAMILIES
from edgepart.planner.placing.engine.dispatch import upward_ranks
from edgepart.planner.placing.engine.flat_serial import STANDINGS
from edgepart.planner.placing.guided.decode import PLAIN, Decoded, SampleDecoder, gumbel
from edgepart.planner.placing.guided.features import describe
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.engine.test_flat_dispatch import draw_workload as draw_anything
from tests.planner.placing.engine.test_flat_serial import KINDS, use
from tests.planner.placing.workloads import INF, workload, workloads


@pytest.fixture(params=KINDS)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use(request.param, monkeypatch)
    yield


def decoded(graph: Workload, bias: np.ndarray | None = None, samples: int = 1, seed: int = 0) -> Decoded:
    """Placements by plain list scheduling, with a bias."""
    tasks, machines = len(graph.tasks), len(graph.machines)
    bias = np.zeros((tasks, machines)) if bias is None else bias
    return SampleDecoder(graph, describe(graph)).decode(
        bias, np.tile(PLAIN, (tasks, 1)), gumbel(samples, tasks, machines, seed)
    )


def place_plainly(graph: Workload) -> tuple[list[int], list[float]]:
    """Where and when each task runs if each goes, by upward rank, to the machine that is done with it first, in the first
    gap there. Machines have all the memory they need."""
    machines, ranks = range(len(graph.machines)), upward_ranks(graph)
    position = {task: number for number, task in enumerate(graph.order)}
    sending, receiving = ([0.0] * len(machines) for _ in range(2))
    runs: list[list[tuple[float, float]]] = [[] for _ in machines]
    where: dict[int, int] = {}
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    there: dict[tuple[int, int], float] = {}

    def arrival(number: int, machine: int) -> float:
        tensor = graph.tensors[number]
        at = where[tensor.source]
        leaves = max(end[tensor.source], sending[at], receiving[machine])
        return there.get((number, machine), leaves + graph.transfer_s(tensor, at, machine))

    def begin(task: int, machine: int, ready: float) -> float:
        took = graph.tasks[task].compute_s[machine]
        ends = sorted({ready, *(done for _, done in runs[machine] if done >= ready)})
        return next(at for at in ends if all(b <= at or at + took <= a for a, b in runs[machine]))

    for task in sorted(graph.order, key=lambda task: (-ranks[task], position[task])):
        done = []
        for machine in machines:
            ready = max([0.0, *(arrival(number, machine) for number in graph.read[task])])
            done.append(begin(task, machine, ready) + graph.tasks[task].compute_s[machine])
        machine = min(machines, key=lambda one: done[one])
        ready = 0.0
        for number in graph.read[task]:
            if (number, machine) not in there:
                at = where[graph.tensors[number].source]
                there[number, machine] = sending[at] = receiving[machine] = arrival(number, machine)
            ready = max(ready, there[number, machine])
        where[task], start[task] = machine, begin(task, machine, ready)
        end[task] = start[task] + graph.tasks[task].compute_s[machine]
        runs[machine].append((start[task], end[task]))
        there.update({(number, machine): end[task] for number in graph.written[task]})
    every = range(len(graph.tasks))
    return [where[task] for task in every], [start[task] for task in every]


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_network_it_is_list_scheduling(code: None, family: str) -> None:
    graph = draw_workload(family, Random(family), 50, 4)
    roomy = Workload(
        graph.name,
        tuple(type(machine)(machine.name, machine.kind) for machine in graph.machines),
        graph.tasks,
        graph.tensors,
        graph.bytes_per_s,
        graph.latency_s,
    )
    where, start_s = place_plainly(roomy)
    found = decoded(roomy)
    assert found.placements[0].tolist() == where
    assert found.start_s[0].tolist() == pytest.approx(start_s)
    ends = [s + task.compute_s[m] for s, task, m in zip(start_s, roomy.tasks, where, strict=True)]
    assert found.makespan_s[0] == pytest.approx(max(ends))


@settings(max_examples=40)
@given(workloads(8, 4, memory=True, partial=True, groups=True))
def test_tasks_are_where_they_can_run_and_groups_together(graph: Workload) -> None:
    try:
        found = decoded(graph, samples=4)
    except Infeasible:
        return
    for where in found.placements.tolist():
        assert all(graph.tasks[task].compute_s[machine] < INF for task, machine in enumerate(where))
        assert all(len({where[task] for task in group}) == 1 for group in graph.groups)


def test_what_does_not_fit_goes_elsewhere(code: None) -> None:
    graph = workload(
        [(1.0, 9.0), (1.0, 9.0), (1.0, 9.0)], [], memory_bytes=(2.0, 5.0), task_bytes=(1.0, 1.0, 1.0)
    )
    assert sorted(decoded(graph).placements[0].tolist()) == [0, 0, 1]


def test_bytes_that_fit_nowhere_go_where_most_memory_is_left() -> None:
    graph = workload([(1.0, 1.0)] * 3, [], memory_bytes=(10.0, 11.0), task_bytes=(8.0, 8.0, 8.0))
    assert sorted(decoded(graph).placements[0].tolist()) in ([0, 0, 1], [0, 1, 1])


def test_a_bias_moves_a_task(code: None) -> None:
    graph = workload([(1.0, 1.1), (1.0, 1.1)], [(0, (1,), 1000.0)])
    assert decoded(graph).placements[0].tolist() == [0, 0]
    assert decoded(graph, bias=np.array([[0.0, 0.0], [0.0, 1e6]])).placements[0].tolist() == [0, 1]


def test_machines_are_drawn_by_the_softmax_of_their_scores(code: None) -> None:
    graph = workload([(1.0, 1.0)], [])
    found = decoded(graph, bias=np.array([[0.0, np.log(3.0)]]), samples=4000, seed=7)
    assert found.placements[1:, 0].mean() == pytest.approx(0.75, abs=0.03)
    assert found.placements[0, 0] == 1  # The first sample has no noise.


@pytest.mark.parametrize("kind", KINDS[:2])
def test_compiled_and_not_compiled_decode_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random, compared = Random(4), 0
    for number in range(40):
        graph = draw_anything(random)
        if any(min(task.compute_s) == INF for task in graph.tasks):
            continue
        compared += len(graph.machines) > 1
        features, shape = describe(graph), (len(graph.tasks), len(graph.machines))
        drawn = np.random.default_rng(number)
        bias, weights = drawn.normal(size=shape), drawn.normal(size=(shape[0], STANDINGS))
        noise = gumbel(3, *shape, number)
        with monkeypatch.context() as patch:
            use("compiled", patch)
            found, kept = SampleDecoder(graph, features).record(bias, weights, noise)
            use(kind, patch)
            again, kept_again = SampleDecoder(graph, features).record(bias, weights, noise)
            alone = SampleDecoder(graph, features).decode(bias, weights, noise)
        for one in (again, alone):
            assert np.array_equal(one.placements, found.placements)
            assert np.array_equal(one.start_s, found.start_s)
            assert np.array_equal(one.makespan_s, found.makespan_s)
        assert np.array_equal(kept_again.allowed, kept.allowed)
        assert np.array_equal(kept_again.standings, kept.standings)
    assert compared > 20


def test_the_record_explains_every_choice(code: None) -> None:
    graph = draw_workload("inception", Random(2), 60, 4)
    tasks, machines, samples = len(graph.tasks), 4, 5
    random = np.random.default_rng(1)
    bias, weights = random.normal(size=(tasks, machines)), random.normal(size=(tasks, STANDINGS))
    noise = gumbel(samples, tasks, machines, 3)
    found, kept = SampleDecoder(graph, describe(graph)).record(bias, weights, noise)
    scores = bias[None] + np.einsum("knmf,nf->knm", kept.standings, weights) + noise
    assert (np.where(kept.allowed, scores, -np.inf).argmax(axis=2) == found.placements).all()
    assert (found.placements[1:] != found.placements[:1]).any()
