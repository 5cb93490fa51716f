"""Everything on one machine; and the best of what the others answer, whoever they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given

from edgepart.planner.errors import Infeasible, NotInstalled, UsageError
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.placers import best
from edgepart.planner.placing.placers.best import auto, find, names, single
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import MODULES, Placer
from edgepart.planner.vocabulary import GUIDED
from tests.planner.placing.workloads import INF, workload, workloads

ASKED = Asked(lambda: 0.0)
PAIR = workload([(2.0, 1.0), (2.0, 1.0)], [], memory_bytes=(9.0, 9.0), task_bytes=(5.0, 4.0))


def on(*placement: int, bound_s: float | None = None) -> Placer:
    def answer(workload: Workload, asked: Asked) -> PlacementFound:
        schedule = dispatch(workload, placement)
        return PlacementFound(placement, schedule.makespan_s, schedule, bound_s, why="said so")

    return answer


def refusing(error: Exception) -> Placer:
    def answer(workload: Workload, asked: Asked) -> PlacementFound:
        raise error

    return answer


@pytest.fixture
def those(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Who answers instead of the placers, and a list of whom was asked."""

    def put(others: Placer, **named: Placer) -> list[str]:
        asked: list[str] = []

        def placer(name: str) -> Placer:
            asked.append(name)
            return named.get(name, others)

        monkeypatch.setattr(best, "placer", placer)
        return asked

    return put


def test_each_is_asked_once_but_those_that_need_a_network() -> None:
    assert {*best.IN_TURN, *GUIDED} == {*MODULES} and len({*best.IN_TURN}) == len(best.IN_TURN)
    assert {*GUIDED} - {*best.IN_TURN} == {"placeto", "gdp"} and names() == ("single", *MODULES, "auto")


@given(workloads(memory=True, partial=True))
def test_one_machine_is_the_fastest_that_can(workload: Workload) -> None:
    count = len(workload.tasks)
    can = [
        sum(task.compute_s[m] for task in workload.tasks)
        for m in range(len(workload.machines))
        if not workload.short_bytes([m] * count)
    ]
    for objective in ("latency", "throughput"):
        asked = Asked(lambda: 0.0, objective)
        if min(can, default=INF) == INF:
            with pytest.raises(Infeasible):
                single(workload, asked)
        else:
            assert check(workload, single(workload, asked), objective).value_s == min(can)


def test_what_one_machine_lacks_is_said() -> None:
    tight = workload([(1.0, INF), (1.0, INF)], [], memory_bytes=(7.0, 9.0), task_bytes=(5.0, 4.0))
    with pytest.raises(Infeasible, match="m0 lacks 2 bytes") as refused:
        find(tight, "single", ASKED)
    assert refused.value.short_bytes == {"m0": 2}


def test_auto_takes_the_best_and_says_whose_it_is(those: Callable[..., list[str]]) -> None:
    asked = those(on(0, 1), getf=on(1, 1), moirai=on(0, 0, bound_s=1.5))
    found = check(PAIR, auto(PAIR, ASKED))
    assert found.value_s == 2.0 and found.bound_s == 1.5
    assert found.why.startswith("single is the best of 11 strategies")
    assert asked == list(best.IN_TURN)


def test_auto_goes_on_without_those_that_cannot(those: Callable[..., list[str]]) -> None:
    those(refusing(Infeasible("no", {"m0": 3})), moirai=refusing(NotInstalled("not installed")))
    found = auto(PAIR, ASKED)
    assert found.placement == (1, 1) and "moirai (not installed)" in found.why


def test_auto_says_the_least_that_is_missing(those: Callable[..., list[str]]) -> None:
    tight = workload([(1.0, 1.0)] * 2, [], memory_bytes=(1.0, 1.0), task_bytes=(5.0, 4.0))
    those(refusing(Infeasible("no", {"m0": 9})), getf=refusing(Infeasible("nearly", {"m1": 3})))
    with pytest.raises(Infeasible, match="nearly"):
        auto(tight, ASKED)


def test_auto_keeps_to_its_time_and_stops_at_what_is_proved(those: Callable[..., list[str]]) -> None:
    now = iter(range(100))
    asked = those(on(0, 1))
    found = auto(PAIR, Asked(lambda: float(next(now)), budget_s=3.0))
    assert asked == ["heft"] and "moirai (no time left)" in found.why
    asked = those(on(0, 1), expert=on(1, 1, bound_s=2.0))
    assert "proved" in auto(PAIR, ASKED).why and asked == ["heft", "m-etf", "learned", "expert"]


def test_who_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"single, .*moirai.* auto"):
        find(PAIR, "brute", ASKED)
    with pytest.raises(UsageError, match="latency or throughput"):
        find(PAIR, "single", Asked(lambda: 0.0, "speed"))
