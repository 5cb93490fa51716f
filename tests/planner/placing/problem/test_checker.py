"""The checker passes what dispatch makes, and names each way in which an answer can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.errors import InternalError
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.load import max_load
from edgepart.planner.placing.problem.checker import check, violations
from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementFound, PlacementSchedule
from edgepart.planner.placing.problem.workload import SharedMedium, Workload
from tests.planner.placing.workloads import INF, workload, workloads

BRANCHES = workload(
    [(1.0, 1.0), (4.0, 4.0), (3.0, 3.0), (1.0, 1.0)],
    [(0, (1, 2), 100.0), (1, (3,), 50.0), (2, (3,), 50.0)],
    latency_s=0.5,
)


def found(workload: Workload, placement: tuple[int, ...]) -> PlacementFound:
    schedule = dispatch(workload, placement)
    return PlacementFound(placement, schedule.makespan_s, schedule)


def rules(workload: Workload, answer: PlacementFound, objective: str = "latency") -> set[str]:
    return {violation.rule for violation in violations(workload, answer, objective)}


@given(workloads(media=True), st.data())
def test_what_is_dispatched_is_sound(workload: Workload, data: st.DataObject) -> None:
    machines = st.integers(0, len(workload.machines) - 1)
    placement = tuple(data.draw(machines) for _ in workload.tasks)
    check(workload, found(workload, placement))
    check(workload, PlacementFound(placement, max_load(workload, placement)), "throughput")
    check(
        replace(workload, overlap=False),
        PlacementFound(placement, max_load(replace(workload, overlap=False), placement)),
        "throughput",
    )


def _schedule(**changed: object) -> Callable[[PlacementSchedule], PlacementSchedule]:
    return lambda schedule: replace(schedule, **changed)  # type: ignore[arg-type]


T = PlacedTransfer
GOOD = found(BRANCHES, (0, 0, 1, 0))
"""Starts 0, 1, 2.5, 6.5; a transfer there at 1 to 2.5, one back at 5.5 to 6.5."""


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("precedence", {"start_s": (0.0, 1.0, 2.0, 6.5)}),
        ("precedence", {"start_s": (-1.0, 1.0, 2.5, 6.5)}),
        ("precedence", {"start_s": (0.0, 1.0, float("nan"), 6.5)}),
        ("precedence", {"transfers": (T(0, 0, 1, 0.5, 2.0), T(2, 1, 0, 5.5, 6.5))}),
        ("length", {"transfers": (T(0, 0, 1, 1.0, 2.0), T(2, 1, 0, 5.5, 6.5))}),
        ("length", {"transfers": (T(0, 0, 1, 1.0, 2.5), T(2, 1, 0, 5.0, 6.5))}),
        ("transfer", {"transfers": (T(0, 0, 1, 1.0, 2.5),)}),
        ("transfer", {"transfers": (T(0, 1, 0, 1.0, 2.5), T(2, 1, 0, 5.5, 6.5))}),
        ("transfer", {"transfers": (T(0, 0, 1, 1.0, 2.5), T(1, 0, 1, 5.0, 6.0), T(2, 1, 0, 5.5, 6.5))}),
        ("once", {"transfers": (T(0, 0, 1, 1.0, 2.5), T(0, 0, 1, 2.5, 4.0), T(2, 1, 0, 5.5, 6.5))}),
        ("computing", {"start_s": (0.0, 0.5, 2.5, 6.5)}),
        ("value", {"makespan_s": 7.0}),
        ("shape", {"placement": (0, 0, 0, 0)}),
        ("shape", {"start_s": (0.0, 1.0, 2.5)}),
        ("shape", {"transfers": (T(9, 0, 1, 1.0, 2.5),)}),
    ],
)
def test_what_is_wrong_with_a_schedule_is_named(rule: str, change: dict[str, object]) -> None:
    assert GOOD.schedule is not None
    answer = replace(GOOD, schedule=_schedule(**change)(GOOD.schedule))
    assert rule in rules(BRANCHES, answer)


def test_a_side_of_a_machine_does_one_thing_at_a_time() -> None:
    fan = workload([(1.0,) * 3] * 3, [(0, (1,), 100.0), (0, (2,), 100.0)])
    late = T(0, 0, 1, 1.0, 2.0), T(1, 0, 2, 1.5, 2.5)
    answer = PlacementSchedule((0, 1, 2), (0.0, 2.0, 2.5), late, 3.5)
    assert rules(fan, PlacementFound((0, 1, 2), 3.5, answer)) == {"sending"}
    join = workload([(1.0,) * 3] * 3, [(0, (2,), 100.0), (1, (2,), 100.0)])
    both = T(0, 0, 2, 1.0, 2.0), T(1, 1, 2, 1.0, 2.0)
    assert rules(
        join, PlacementFound((0, 1, 2), 3.0, PlacementSchedule((0, 1, 2), (0.0, 0.0, 2.0), both, 3.0))
    ) == {"receiving"}


def test_one_transfer_at_a_time_crosses_a_medium() -> None:
    pair = workload([(1.0,) * 4] * 4, [(0, (2,), 100.0), (1, (3,), 100.0)])
    both = T(0, 0, 2, 1.0, 2.0), T(1, 1, 3, 1.0, 2.0)
    answer = PlacementSchedule((0, 1, 2, 3), (0.0, 0.0, 2.0, 2.0), both, 3.0)
    assert rules(pair, PlacementFound((0, 1, 2, 3), 3.0, answer)) == set()
    air = replace(pair, media=(SharedMedium("air", frozenset({(0, 2), (1, 3)})),))
    assert rules(air, PlacementFound((0, 1, 2, 3), 3.0, answer)) == {"crossing"}
    assert dispatch(air, (0, 1, 2, 3)).makespan_s == 4.0
    assert rules(air, PlacementFound((0, 1, 2, 3), 1.0), "throughput") == {"value"}
    assert rules(air, PlacementFound((0, 1, 2, 3), 2.0), "throughput") == set()


def test_what_takes_no_time_is_not_in_the_middle_of_another() -> None:
    pair = workload([(2.0,), (0.0,)], [])
    for start_s, broken in ((0.0, set()), (1.0, {"computing"}), (2.0, set())):
        schedule = PlacementSchedule((0, 0), (0.0, start_s), (), 2.0)
        assert rules(pair, PlacementFound((0, 0), 2.0, schedule)) == broken


def test_places_are_judged_whatever_the_objective() -> None:
    tight = workload(
        [(1.0, INF), (1.0, 1.0)], [], memory_bytes=(5.0, 10.0), task_bytes=(4.0, 4.0), colocate=("g", "g")
    )
    for objective in ("latency", "throughput"):
        assert {"runs", "colocation"} <= rules(tight, PlacementFound((1, 0), 1.0), objective)
        assert "memory" in rules(tight, PlacementFound((0, 0), 2.0), objective)


def test_values_and_bounds() -> None:
    assert rules(BRANCHES, replace(GOOD, value_s=7.4)) == {"value"}
    assert rules(BRANCHES, replace(GOOD, bound_s=7.6)) == {"bound"}
    assert rules(BRANCHES, replace(GOOD, bound_s=7.5)) == set()
    assert rules(BRANCHES, replace(GOOD, schedule=None)) == {"shape"}
    assert rules(BRANCHES, replace(GOOD, value_s=float("nan"))) == {"shape"}
    assert rules(BRANCHES, replace(GOOD, placement=(0, 0, 2, 0))) == {"shape"}
    assert rules(BRANCHES, replace(GOOD, placement=(0,))) == {"shape"}
    with pytest.raises(InternalError, match=r"7\.4"):
        check(BRANCHES, replace(GOOD, value_s=7.4))


def test_replicas_take_turns_sample_by_sample() -> None:
    pair = workload([(2.0,) * 4, (4.0,) * 4], [(0, (1,), 100.0)])
    twice = PlacementFound((0, 1), 2.0, replicas=((0,), (1, 2)))
    assert rules(pair, twice, "throughput") == set()
    assert rules(pair, replace(twice, value_s=4.0), "throughput") == {"value"}
    # Machines 0 and 1 of both tasks meet at every sample: nothing travels.
    both = PlacementFound((0, 0), 3.0, replicas=((0, 1), (0, 1)))
    assert rules(pair, both, "throughput") == set()
    assert rules(pair, replace(both, replicas=((0, 1), (1, 0))), "throughput") == {"shape"}
    assert rules(pair, replace(twice, replicas=((0,),)), "throughput") == {"shape"}
    full = workload([(2.0,) * 2], [], memory_bytes=(1.0, 0.0), task_bytes=(1.0,))
    assert rules(full, PlacementFound((0,), 1.0, replicas=((0, 1),)), "throughput") == {"memory"}
