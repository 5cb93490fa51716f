"""Stages, shares by hand, partitions and what is made to fit: by hand, and against trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, permutations
from math import inf, lcm

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgepart.planner.errors import Infeasible
from edgepart.planner.placing.chain_partition import balance
from edgepart.planner.placing.engine.fit_memory import fit
from edgepart.planner.placing.engine.load import loads, max_load, turn_loads
from edgepart.planner.placing.placers import cuts, min_cut
from edgepart.planner.placing.placers.contiguous import _runs
from edgepart.planner.placing.placers.cuts import blocks, costs, cut_nearer
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import placer
from tests.planner.placing.asking import asked, every_placement, found_by, obeyed
from tests.planner.placing.workloads import workload, workloads


@given(workloads(6, 3, groups=True))
def test_blocks_are_in_order_and_part_no_group(workload: Workload) -> None:
    found = blocks(workload)
    block = {task: number for number, tasks in enumerate(found.tasks) for task in tasks}
    assert sorted(block) == list(range(len(workload.tasks)))
    assert all(block[task] <= block[reader] for task, after in enumerate(workload.after) for reader in after)
    assert all(len({block[task] for task in group}) == 1 for group in workload.groups)


@given(workloads(6, 3, partial=True, memory=True))
def test_stages_cost_what_counting_their_tensors_says(workload: Workload) -> None:
    found = blocks(workload)
    block = {task: number for number, tasks in enumerate(found.tasks) for task in tasks}
    cost = costs(workload, found)
    for machine, kept in enumerate(workload.machines):
        other = (machine + 1) % len(workload.machines)  # All links are equal.
        for begin, end in combinations(range(len(found.tasks) + 1), 2):
            inside = [task for tasks in found.tasks[begin:end] for task in tasks]
            compute_s = sum(workload.tasks[task].compute_s[machine] for task in inside)
            if sum(workload.tasks[task].memory_bytes for task in inside) > kept.memory_bytes:
                compute_s = inf
            receive_s = send_s = 0.0
            for tensor in workload.tensors:
                at = block[tensor.source]
                if at < begin and any(begin <= block[reader] < end for reader in tensor.readers):
                    receive_s += workload.transfer_s(tensor, other, machine)
                if begin <= at < end and any(block[reader] >= end for reader in tensor.readers):
                    send_s += workload.transfer_s(tensor, machine, other)
            assert cost.compute_s[machine][begin, end] == compute_s
            assert cost.receive_s[machine][begin, end] == pytest.approx(receive_s, abs=1e-9)
            assert cost.send_s[machine][begin, end] == pytest.approx(send_s, abs=1e-9)


def chain(seconds: Sequence[tuple[float, ...]], nbytes: list[float], overlap: bool = True) -> Workload:
    made = workload(list(seconds), [(n, (n + 1,), size) for n, size in enumerate(nbytes[: len(seconds) - 1])])
    return Workload(
        made.name, made.machines, made.tasks, made.tensors, made.bytes_per_s, made.latency_s, overlap
    )


@st.composite
def chains(draw: st.DrawFn) -> Workload:
    machines = draw(st.integers(1, 3))
    second = st.integers(1, 20).map(float)
    rows = draw(st.lists(st.tuples(*[second] * machines), min_size=1, max_size=6))
    return chain(
        rows, draw(st.lists(st.integers(0, 900).map(float), min_size=6, max_size=6)), draw(st.booleans())
    )


def contiguous(placement: tuple[int, ...]) -> bool:
    return 1 + sum(a != b for a, b in pairwise(placement)) == len({*placement})


@given(chains())
def test_stages_of_a_chain_are_the_best_of_all_divisions(workload: Workload) -> None:
    every = [placement for placement in every_placement(workload) if contiguous(placement)]
    alone = min(max_load(workload, placement) for placement in every)
    busiest = found_by("pipeline", workload, "throughput")
    assert busiest.value_s <= alone + 1e-9
    assert busiest.replicas or contiguous(busiest.placement)
    latency = found_by("pipeline", workload)
    assert latency.schedule is not None and contiguous(latency.placement)
    sums = []
    for placement in every:
        way_s = sum(
            workload.transfer_s(t, placement[t.source], placement[t.readers[0]]) for t in workload.tensors
        )
        sums.append(way_s + sum(t.compute_s[m] for t, m in zip(workload.tasks, placement, strict=True)))
    assert latency.value_s == pytest.approx(min(sums))


def test_machines_take_turns_at_a_stage_that_one_is_too_slow_for() -> None:
    heavy = chain([(2.0, 2.0, 2.0), (4.0, 4.0, 4.0)], [0.0])
    found = found_by("pipeline", heavy, "throughput")
    assert found.value_s == 2.0
    assert sorted(map(len, found.replicas)) in ([1, 2], [3, 3])
    assert max(turn_loads(heavy, found.replicas)) == 2.0


def test_turns_by_hand() -> None:
    # Two and three machines: the six samples go 0-2, 1-3, 0-4, 1-2, 0-3, 1-4; machine 2 keeps what it made.
    made = workload([(6.0,) * 5, (6.0,) * 5], [(0, (1,), 600.0)])
    assert turn_loads(made, [(0, 1), (2, 3, 4)]) == [3.0, 3.0, 2.0, 2.0, 2.0]
    assert turn_loads(made, [(0, 1), (0, 1)]) == [6.0, 6.0, 0.0, 0.0, 0.0]
    assert turn_loads(made, [(0, 1), (1, 0)]) == [6.0, 6.0, 0.0, 0.0, 0.0]


@given(workloads(5, 4), st.data())
def test_turns_are_the_average_over_samples(workload: Workload, data: st.DataObject) -> None:
    summed = Workload(
        workload.name,
        workload.machines,
        workload.tasks,
        workload.tensors,
        workload.bytes_per_s,
        workload.latency_s,
        overlap=False,
    )
    machines = range(len(workload.machines))
    several = st.lists(st.sampled_from(machines), min_size=1, max_size=3, unique=True)
    turns = [tuple(data.draw(several)) for _ in workload.tasks]
    samples = lcm(*map(len, turns))
    every = [loads(summed, [turn[k % len(turn)] for turn in turns]) for k in range(samples)]
    assert turn_loads(summed, turns) == pytest.approx(
        [sum(row) / samples for row in zip(*every, strict=True)]
    )


@given(st.integers(1, 3), st.integers(1, 4), st.data())
def test_runs_are_as_good_as_trying_every_run(machines: int, places: int, data: st.DataObject) -> None:
    number = st.integers(1, 30).map(float) | st.just(inf)
    tables = [
        np.array([[data.draw(number) for _ in range(places + 1)] for _ in range(places + 1)])
        for _ in range(machines)
    ]

    def best(used: int, place: int) -> float:
        if place == places:
            return 0.0
        return min(
            (
                max(max(t[place, to] for t in tables[since:upto]) / (upto - since), best(upto, to))
                for since in range(used, machines)
                for upto in range(since + 1, machines + 1)
                for to in range(place + 1, places + 1)
            ),
            default=inf,
        )

    found = _runs(tables)
    if found is None:
        assert best(0, 0) == inf
    else:
        assert [begin for _, begin, _ in found] == [0, *(end for _, _, end in found[:-1])]
        busiest = max(max(tables[m][b, e] for m in run) / len(run) for run, b, e in found)
        assert busiest == best(0, 0) < inf


@given(st.integers(1, 3), st.integers(1, 4), st.data())
def test_a_sum_of_stages_is_as_small_as_any(machines: int, places: int, data: st.DataObject) -> None:
    tables = [
        np.array(
            [[float(data.draw(st.integers(1, 30))) for _ in range(places + 1)] for _ in range(places + 1)]
        )
        for _ in range(machines)
    ]
    for count, found in enumerate(balance(tables, np.add), 1):
        tried = [
            sum(tables[m][b, e] for m, (b, e) in zip(order, pairwise([0, *inner, places]), strict=True))
            for order in permutations(range(machines), count)
            for inner in combinations(range(1, places), count - 1)
        ]
        assert found.busiest == min(tried)
        assert found.busiest == sum(tables[m][b, e] for m, b, e in found.stages)


def test_a_long_order_is_cut_again_near_the_best_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "MOST_BLOCKS", 8)
    rows: list[tuple[float, ...]] = [(1.0, 1.0)] * 101
    long = workload(
        [*rows, (2.0, 2.0)],
        [(n, (n + 1,), 1.0) for n in range(101)],
        memory_bytes=(60.0, 60.0),
        task_bytes=(1.0,) * 102,
    )
    coarse = blocks(long)
    assert len(coarse.tasks) <= 9
    finer = cut_nearer(coarse, [4])
    assert coarse.ends[3] in finer.ends and len(finer.ends) <= 12
    assert found_by("pipeline", long, "throughput").value_s == 52.0
    monkeypatch.setattr("edgepart.planner.placing.placers.contiguous.cut_nearer", None)
    with pytest.raises(TypeError):
        found_by("pipeline", long, "throughput")
    # A look at the clock takes a second, so that there is no time to cut again.
    placer("pipeline")(long, asked("throughput", budget_s=1.0))


def test_what_only_one_machine_can_run_does_not_draw_the_rest_to_it() -> None:
    slow_with_the_camera = workload(
        [(0.0, inf), (4.0, 1.0), (4.0, 1.0), (0.0, inf)], [(0, (1,), 1.0), (1, (2,), 1.0), (2, (3,), 1.0)]
    )
    assert found_by("expert", slow_with_the_camera).placement == (0, 1, 1, 0)


def test_by_hand_one_machine_is_filled_after_the_other_the_fastest_first() -> None:
    four = workload([(2.0, 1.0)] * 4, [], memory_bytes=(9.0, 3.0), task_bytes=(1.0, 2.0, 1.0, 1.0))
    assert found_by("expert", four).placement == (1, 1, 0, 0)


def test_by_hand_work_is_dealt_by_speed_for_throughput() -> None:
    six = workload([(2.0, 1.0)] * 6, [])
    assert found_by("expert", six, "throughput").placement == (1, 1, 1, 1, 0, 0)


def test_by_hand_what_a_machine_cannot_run_goes_elsewhere_and_the_rest_stays() -> None:
    odd = workload([(1.0, 2.0), (inf, 2.0), (1.0, 2.0)], [])
    assert found_by("expert", odd).placement in ((0, 1, 0), (1, 1, 1))


def test_two_clusters_with_one_thread_between_are_parted_there() -> None:
    pairs = [(0, (1, 2), 900.0), (1, (2,), 900.0), (2, (3,), 1.0), (3, (4, 5), 900.0), (4, (5,), 900.0)]
    found = found_by("metis", workload([(1.0, 1.0)] * 6, pairs), "throughput")
    assert found.placement in ((0, 0, 0, 1, 1, 1), (1, 1, 1, 0, 0, 0))


@settings(max_examples=40)
@given(workloads(8, 3, memory=True, partial=True, groups=True))
def test_coarse_graphs_keep_groups_where_they_can_run(workload: Workload) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(min_cut, "COARSE", 2)
        try:
            found = found_by("metis", workload)
        except Infeasible:
            assert not list(every_placement(workload))
        else:
            assert obeyed(workload, found.placement)


@given(workloads(6, 3, memory=True, groups=True), st.data())
def test_what_fits_stays_and_what_does_not_is_made_to_fit(workload: Workload, data: st.DataObject) -> None:
    possible = list(every_placement(workload))
    assume(possible)
    kept = data.draw(st.sampled_from(possible))
    assert fit(workload, kept) == kept
    machines = range(len(workload.machines))
    groups = [data.draw(st.sampled_from(machines)) for _ in workload.groups]
    placement = [0] * len(workload.tasks)
    for group, machine in zip(workload.groups, groups, strict=True):
        for task in group:
            placement[task] = machine
    assert fit(workload, placement) in possible
