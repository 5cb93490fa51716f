"""What holds for all quick placers, on any small workload."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.errors import Infeasible
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.load import max_load, turn_loads
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import MODULES
from edgepart.planner.vocabulary import GUIDED
from tests.planner.placing.asking import QUICK, every_placement, found_by, obeyed, shortest_s
from tests.planner.placing.workloads import workload, workloads

pytest.importorskip("ortools", reason="m-sct and getf need OR-tools, of the extra [exact]")

NAMES = st.sampled_from(QUICK)


def test_all_but_those_that_use_all_their_time_or_a_network_are_quick() -> None:
    assert {*QUICK, "moirai", "climb", *GUIDED} == {*MODULES}


@settings(max_examples=400)
@given(NAMES, workloads(6, 3, memory=True, partial=True, groups=True, media=True))
def test_what_is_found_keeps_the_rules_and_infeasible_is_said_only_where_nothing_fits(
    name: str, workload: Workload
) -> None:
    possible = list(every_placement(workload))
    for objective in ("latency", "throughput"):
        try:
            found = found_by(name, workload, objective)
        except Infeasible as error:
            assert not possible
            assert all(nbytes > 0 for nbytes in error.short_bytes.values())
            continue
        assert found.placement in possible
        assert found.bound_s is None and found.why
        if objective == "throughput":
            turns = found.replicas or tuple((machine,) for machine in found.placement)
            assert found.value_s == max(turn_loads(workload, turns))
            assert found.schedule is None
        else:
            assert found.schedule is not None and found.schedule.placement == found.placement
            assert found.value_s == found.schedule.makespan_s
            assert found.value_s <= dispatch(workload, found.placement).makespan_s


@settings(max_examples=100)
@given(NAMES, workloads(4, 3, partial=True, memory=True))
def test_nothing_found_is_shorter_than_the_best_of_all(name: str, workload: Workload) -> None:
    possible = list(every_placement(workload))
    if not possible:
        return
    assert found_by(name, workload).value_s >= min(shortest_s(workload, one) for one in possible)
    if not (found := found_by(name, workload, "throughput")).replicas:
        assert found.value_s >= min(max_load(workload, one) for one in possible)


@given(NAMES, workloads(8, 1))
def test_on_one_machine_it_is_the_sum(name: str, workload: Workload) -> None:
    whole_s = sum(task.compute_s[0] for task in workload.tasks)
    assert found_by(name, workload).value_s == whole_s
    assert found_by(name, workload, "throughput").value_s == whole_s


@given(NAMES, workloads(6, 4, memory=True, groups=True))
def test_the_same_is_found_again(name: str, workload: Workload) -> None:
    try:
        assert found_by(name, workload) == found_by(name, workload)
    except Infeasible:
        assert not list(every_placement(workload))


@pytest.mark.parametrize("name", QUICK)
def test_what_no_machine_can_run_or_keep_is_named(name: str) -> None:
    inf = float("inf")
    with pytest.raises(Infeasible, match="'t1'") as caught:
        found_by(name, workload([(1.0, 1.0), (inf, inf)], []))
    assert caught.value.short_bytes == {}
    large = workload([(1.0, 1.0), (1.0, 1.0)], [], memory_bytes=(5.0, 7.0), task_bytes=(1.0, 9.0))
    with pytest.raises(Infeasible, match="'t1'") as caught:
        found_by(name, large)
    assert caught.value.short_bytes == {"m1": 2}
    apart = workload([(1.0, inf), (inf, 1.0)], [], colocate=("together", "together"))
    with pytest.raises(Infeasible, match="'t0'"):
        found_by(name, apart)


@pytest.mark.parametrize("name", QUICK)
def test_where_greedy_gets_stuck_what_fits_is_found(name: str) -> None:
    # 6 + 4 and 5 + 5 fill both machines; to take the next best leaves 5 bytes in two places for the last.
    tight = workload([(1.0, 1.0)] * 4, [], memory_bytes=(10.0, 10.0), task_bytes=(5.0, 4.0, 5.0, 6.0))
    assert obeyed(tight, found_by(name, tight).placement)


@pytest.mark.parametrize("name", QUICK)
def test_together_they_lack_memory_and_it_says_how_much(name: str) -> None:
    short = workload([(1.0, 1.0)] * 3, [], memory_bytes=(5.0, 5.0), task_bytes=(4.0, 4.0, 4.0))
    with pytest.raises(Infeasible, match="together they lack 2 bytes") as caught:
        found_by(name, short)
    assert sum(caught.value.short_bytes.values()) == 3
