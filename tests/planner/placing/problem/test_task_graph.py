"""What follows from the graph of a workload alone is computed once, and nothing else changes by that."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given

from edgepart.planner.placing.engine.flat_workload import flatten
from edgepart.planner.placing.problem.task_graph import TaskGraph
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.workloads import workload, workloads


def without_last(graph: Workload) -> Workload:
    """The workload without its last machine."""
    return replace(
        graph,
        machines=graph.machines[:-1],
        tasks=tuple(replace(task, compute_s=task.compute_s[:-1]) for task in graph.tasks),
        bytes_per_s=tuple(row[:-1] for row in graph.bytes_per_s[:-1]),
        latency_s=tuple(row[:-1] for row in graph.latency_s[:-1]),
        media=(),
    )


@given(workloads(8, 4, memory=True, partial=True, groups=True, media=True))
def test_a_shared_graph_changes_no_number(before: Workload) -> None:
    assume(len(before.machines) > 1)
    flatten(before)
    alone = without_last(before)
    shared = without_last(before).like(before)
    assert shared == alone and shared.graph is before.graph and alone.graph is not before.graph
    for name in ("written", "read", "before", "after", "order", "groups", "group_bytes"):
        assert getattr(shared, name) == getattr(alone, name)
    assert flatten(shared).order is flatten(before).order
    for one, other in zip(flatten(shared), flatten(alone), strict=True):
        assert (
            getattr(one, "tolist", lambda one=one: one)()
            == getattr(other, "tolist", lambda other=other: other)()
        )


def test_a_graph_that_differs_is_not_shared() -> None:
    first = workload([(1.0, 2.0), (1.0, 2.0)], [(0, (1,), 5.0)])
    for other in (
        workload([(1.0, 2.0), (1.0, 2.0)], [(0, (1,), 6.0)]),
        workload([(1.0, 2.0), (1.0, 2.0)], []),
        workload([(1.0, 2.0), (1.0, 2.0)], [(0, (1,), 5.0)], colocate=("a", "a")),
    ):
        assert other.like(first) is other and other.graph is not first.graph


def test_what_was_made_of_a_record_is_remembered_and_not_copied() -> None:
    first, made = workload([(1.0,)], []), []

    def make(graph: TaskGraph) -> int:
        made.append(graph)
        return len(graph.tasks)

    assert first.graph.once(make) == first.graph.once(make) == 1 and len(made) == 1
    assert replace(first.graph).once(make) == 1 and len(made) == 2
