"""Climbing never makes a placement worse, keeps the rules, and finds what needs an exchange."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.placing.engine import judge
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.load import max_load
from edgepart.planner.placing.engine.local_search import climb
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.asking import every_placement, obeyed
from tests.planner.placing.workloads import workload, workloads


@pytest.fixture(params=["compiled", "estimated"], autouse=True)
def how(request: pytest.FixtureRequest) -> Iterator[None]:
    """Steps are judged one by one, by what is compiled, or in batches."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled":
            pytest.importorskip("numba", reason="of the extra [climb]")
            judge.prepare()
        else:
            patch.setattr("edgepart.planner.placing.engine.judge._Prepared.code", None)
        yield


def climbed(
    graph: Workload, start: tuple[int, ...], objective: str, looks: int, seed: int = 0
) -> tuple[float, tuple[int, ...]]:
    ticks = count()
    found = climb(graph, start, objective=objective, clock=lambda: float(next(ticks)), until=looks, seed=seed)
    return found.best.value_s, found.best.placement


@settings(max_examples=60)
@given(
    workloads(8, 3, memory=True, partial=True, groups=True, media=True),
    st.sampled_from(["latency", "throughput"]),
    st.data(),
)
def test_it_is_never_worse_and_fits(graph: Workload, objective: str, data: st.DataObject) -> None:
    possible = list(every_placement(graph))
    if not possible:
        return
    start = data.draw(st.sampled_from(possible))
    value_s, placement = climbed(graph, start, objective, 12)
    assert obeyed(graph, placement)
    before_s = dispatch(graph, start).makespan_s if objective == "latency" else max_load(graph, start)
    after_s = dispatch(graph, placement).makespan_s if objective == "latency" else max_load(graph, placement)
    assert value_s <= before_s
    if objective == "throughput":
        assert value_s == pytest.approx(after_s)
    assert climbed(graph, start, objective, 12) == (value_s, placement)


def test_a_known_schedule_is_not_lost() -> None:
    fan = workload([(1.0,) * 3, (1.0,) * 3, (9.0,) * 3], [(0, (1,), 100.0), (0, (2,), 100.0)])
    known = dispatch(fan, (0, 1, 2), [9.0, 1.0, 5.0])
    ticks = count()
    found = climb(
        fan, known.placement, objective="latency", clock=lambda: float(next(ticks)), until=0, schedule=known
    )
    assert found.best.value_s <= known.makespan_s and found.steps == 0


def test_a_third_machine_takes_what_the_first_has_no_room_for() -> None:
    """The second task has to make room for the first, does not fit where the first was, and alone would lose by moving."""
    around = workload(
        [(9.0, 1.0, 9.0), (9.0, 2.0, 5.0)],
        [(0, (1,), 0.0)],
        memory_bytes=(3.0, 5.0, 5.0),
        task_bytes=(3.0, 5.0),
    )
    assert climbed(around, (0, 1), "latency", 300) == (6.0, (1, 2))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_tasks_change_places_where_no_machine_has_room(objective: str) -> None:
    """Each machine is full, and each has what the other computes ten times as fast."""
    rows: list[tuple[float, ...]] = [*[(10.0, 1.0)] * 3, *[(1.0, 10.0)] * 3]
    full = workload(rows, [], memory_bytes=(3.0, 3.0), task_bytes=(1.0,) * 6)
    assert climbed(full, (0, 0, 0, 1, 1, 1), objective, 300) == (3.0, (1, 1, 1, 0, 0, 0))
