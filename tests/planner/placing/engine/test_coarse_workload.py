"""Groups of tasks as one task, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.errors import InternalError
from edgepart.planner.placing.engine.coarse_workload import coarsen, expand, expand_schedule
from edgepart.planner.placing.engine.compact_schedule import retime
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.load import max_load
from edgepart.planner.placing.exact.dominators import dominators, join_schedules, pieces
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.schedule import PlacementFound
from edgepart.planner.placing.problem.workload import TaskTensor, Workload
from tests.planner.placing.workloads import workload, workloads

CHAIN = workload([(1.0, 2.0)] * 3, [(0, (1, 2), 100.0), (1, (2,), 100.0)], latency_s=1.0)


def test_what_is_merged_is_added_up() -> None:
    coarse = coarsen(CHAIN, [(0, 1), (2,)])
    assert [task.compute_s for task in coarse.tasks] == [(2.0, 4.0), (1.0, 2.0)]
    assert coarse.tensors == (TaskTensor(0, (1,), 200.0, {(0, 1): 4.0, (1, 0): 4.0}),)
    assert expand([(0, 1), (2,)], (1, 0)) == (1, 1, 0)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([(0, 2), (1,)], "wait for each other"),
        ([(0, 1), (1, 2)], "is in two groups"),
        ([(0, 1)], "is in no group"),
    ],
)
def test_groups_that_are_none_are_refused(groups: list[tuple[int, ...]], said: str) -> None:
    with pytest.raises(InternalError, match=said):
        coarsen(CHAIN, groups)


@given(workloads(8, 3, groups=True, media=True), st.integers(1, 8), st.data())
def test_what_happens_to_groups_can_happen_to_their_tasks(
    workload: Workload, most: int, data: st.DataObject
) -> None:
    machines = st.integers(0, len(workload.machines) - 1)
    if data.draw(st.booleans()):
        by_group = {task: n for n, group in enumerate(workload.groups) for task in group}
        drawn = [data.draw(machines) for _ in workload.groups]
        groups = contract(workload, most, [drawn[by_group[t]] for t in range(len(by_group))])
    else:
        groups = contract(workload, most)
    coarse = coarsen(workload, groups)
    placement = [0] * len(coarse.tasks)
    for together in coarse.groups:
        machine = data.draw(machines)
        for task in together:
            placement[task] = machine
    schedule = dispatch(coarse, placement)
    fine = expand_schedule(workload, groups, schedule)
    check(workload, PlacementFound(fine.placement, fine.makespan_s, fine))
    assert retime(workload, fine).makespan_s <= schedule.makespan_s + 1e-9
    assert max_load(workload, fine.placement) <= max_load(coarse, placement) + 1e-9


@given(workloads(10, 2))
def test_what_dominates_comes_before_or_after_all_others(workload: Workload) -> None:
    count = len(workload.tasks)
    behind: list[set[int]] = [set() for _ in range(count)]
    for task in reversed(workload.order):
        for reader in workload.after[task]:
            behind[task] |= {reader} | behind[reader]
    expected = []
    for task in workload.order:
        before = {other for other in range(count) if task in behind[other]}
        jumps = any(behind[task] & {*t.readers} for t in workload.tensors if t.source in before)
        if len(before) + len(behind[task]) == count - 1 and not jumps:
            expected.append(task)
    assert dominators(workload) == tuple(expected)


@given(workloads(10, 3), st.data())
def test_pieces_add_up_to_the_whole(workload: Workload, data: st.DataObject) -> None:
    machines = st.integers(0, len(workload.machines) - 1)
    placement = [data.draw(machines) for _ in workload.tasks]
    parts = [
        (piece, dispatch(piece.workload, [placement[task] for task in piece.tasks]))
        for piece in pieces(workload)
    ]
    whole = join_schedules(workload, parts)
    assert whole.placement == tuple(placement)
    check(workload, PlacementFound(whole.placement, whole.makespan_s, whole))


@given(workloads(40, 3), st.integers(1, 5))
def test_any_graph_can_be_contracted_to_few_groups(workload: Workload, most: int) -> None:
    groups = contract(workload, most)
    assert len(groups) <= max(most, 2)
    coarsen(workload, groups)
