"""What a placement means in time, worked out by hand; and laws for any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.errors import UsageError
from edgepart.planner.placing.engine.dispatch import dispatch, upward_ranks
from edgepart.planner.placing.engine.load import loads
from edgepart.planner.placing.problem.schedule import PlacedTransfer
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.workloads import workload, workloads

BRANCHES = workload(
    [(1.0, 1.0), (4.0, 4.0), (3.0, 3.0), (1.0, 1.0)],
    [(0, (1, 2), 100.0), (1, (3,), 50.0), (2, (3,), 50.0)],
    latency_s=0.5,
)


def test_branches_on_two_machines_run_at_once() -> None:
    found = dispatch(BRANCHES, (0, 0, 1, 0))
    assert found.start_s == (0.0, 1.0, 2.5, 6.5)
    assert found.transfers == (PlacedTransfer(0, 0, 1, 1.0, 2.5), PlacedTransfer(2, 1, 0, 5.5, 6.5))
    assert found.makespan_s == 7.5
    assert dispatch(BRANCHES, (0, 0, 0, 0)).makespan_s == 9.0


def test_a_tensor_travels_once_to_a_machine_and_loads_count_the_busiest_side() -> None:
    fan = workload([(1.0, 1.0), (2.0, 2.0), (2.0, 2.0)], [(0, (1, 2), 100.0)], latency_s=0.5)
    found = dispatch(fan, (0, 1, 1))
    assert len(found.transfers) == 1 and found.makespan_s == 6.5
    assert loads(fan, (0, 1, 1)) == [1.5, 4.0]


def test_one_sending_side_sends_one_after_the_other_the_more_urgent_first() -> None:
    fan = workload([(1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (9.0, 9.0, 9.0)], [(0, (1,), 100.0), (0, (2,), 100.0)])
    found = dispatch(fan, (0, 1, 2))
    assert [(t.target, t.start_s) for t in found.transfers] == [(2, 1.0), (1, 2.0)]


def test_one_receiving_side_receives_one_after_the_other() -> None:
    join = workload([(1.0,) * 3, (1.0,) * 3, (1.0,) * 3], [(0, (2,), 100.0), (1, (2,), 100.0)])
    assert dispatch(join, (0, 1, 2)).start_s[2] == 3.0


def test_a_circle_is_named() -> None:
    with pytest.raises(UsageError, match="'t0' among them"):
        _ = workload([(1.0,), (1.0,)], [(0, (1,), 1.0), (1, (0,), 1.0)]).order


@given(workloads(), st.data())
def test_schedules_keep_the_rules(workload: Workload, data: st.DataObject) -> None:
    machines = st.integers(0, len(workload.machines) - 1)
    placement = [data.draw(machines) for _ in workload.tasks]
    found = dispatch(workload, placement)
    ends = [
        start + task.compute_s[m]
        for start, task, m in zip(found.start_s, workload.tasks, placement, strict=True)
    ]
    assert found.makespan_s == max(ends)
    arrived = {(t.tensor, t.target): t.end_s for t in found.transfers}
    for number, tensor in enumerate(workload.tensors):
        for reader in tensor.readers:
            there = placement[reader]
            at_s = ends[tensor.source] if there == placement[tensor.source] else arrived[number, there]
            assert found.start_s[reader] >= at_s
    busy = [("computes", m, s, e) for m, s, e in zip(placement, found.start_s, ends, strict=True)]
    busy += [("sends", t.source, t.start_s, t.end_s) for t in found.transfers]
    busy += [("receives", t.target, t.start_s, t.end_s) for t in found.transfers]
    by_side: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for side, machine, start, end in busy:
        by_side.setdefault((side, machine), []).append((start, end))
    for spans in by_side.values():
        for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
            assert start >= end
    assert found.makespan_s >= max(upward_ranks(workload, placement)) - 1e-9
