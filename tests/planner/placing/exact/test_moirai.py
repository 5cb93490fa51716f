"""Moirai against everything that could be done, and against the paper's program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.placing_proofs import drawn
from hypothesis import given, settings

from edgepart.planner.errors import Infeasible, UsageError
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.engine.judge import Judged
from edgepart.planner.placing.exact import latency_model
from edgepart.planner.placing.exact import moirai as module
from edgepart.planner.placing.exact.moirai import _MoiraiSearch
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import placer
from tests.planner.placing.asking import QUICK, asked, found_by
from tests.planner.placing.every_schedule import least_load, placements, shortest
from tests.planner.placing.plain_moirai import least_makespan
from tests.planner.placing.workloads import workload, workloads

pytest.importorskip("ortools", reason="moirai needs OR-tools, of the extra [exact]")

EVERY = workloads(8, 3, memory=True, partial=True, groups=True) | workloads(8, 3, media=True)


def moirai(workload: Workload, objective: str = "latency") -> PlacementFound | None:
    """Its answer, checked; None where it says that nothing fits, which is checked, too."""
    try:
        found = found_by("moirai", workload, objective)
    except Infeasible:
        assert not list(placements(workload))
        return None
    return check(workload, found, objective)


@settings(max_examples=150)
@given(EVERY)
def test_no_order_on_any_placement_is_shorter(workload: Workload) -> None:
    if found := moirai(workload):
        assert shortest(workload, found.value_s) == found.value_s == found.bound_s


@settings(max_examples=15)
@given(workloads(4, 2, memory=True, partial=True, groups=True))
def test_the_paper_s_program_finds_the_same(workload: Workload) -> None:
    found = moirai(workload)
    assert least_makespan(workload) == pytest.approx(found.value_s if found else inf, abs=1e-5)


@settings(max_examples=150)
@given(EVERY)
def test_no_placement_has_a_smaller_largest_load(workload: Workload) -> None:
    if found := moirai(workload, "throughput"):
        assert least_load(workload) == pytest.approx(found.value_s)
        assert found.bound_s == found.value_s


@pytest.mark.parametrize(("machines", "graphs"), [(2, 12), (3, 3)])
def test_no_order_on_any_placement_is_shorter_on_graphs_of_eight(machines: int, graphs: int) -> None:
    for seed in range(graphs):
        graph = drawn(8, machines, seed)
        found = moirai(graph)
        assert found is not None and found.bound_s is not None and found.bound_s <= found.value_s
        assert shortest(graph, found.value_s * (1 - 1e-6)) == found.value_s * (1 - 1e-6)


@pytest.mark.parametrize("machines", [2, 3])
def test_what_was_searched_to_the_end_is_best_to_a_millionth_or_so(machines: int) -> None:
    found = moirai(drawn(18, machines, machines))
    assert found is not None and found.gap is not None and found.gap < 1e-5
    assert "to the end" in found.why


def test_it_is_never_worse_than_the_others_and_graphs_too_big_for_a_model_are_contracted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edgepart.planner.placing.exact.moirai.WINDOW_S", 0.2)
    monkeypatch.setattr(
        "edgepart.planner.placing.exact.moirai.MODEL", 3_000
    )  # so that few tasks are too many
    big = drawn(150, 6, 0)
    found = placer("moirai")(big, asked(budget_s=32.0))
    check(big, found)
    assert "contracted" in found.why
    assert found.value_s <= min(found_by(name, big).value_s for name in QUICK)
    assert found.bound_s is not None and 0 < found.bound_s <= found.value_s


def test_pieces_between_tasks_that_everything_passes_through_add_up() -> None:
    random = Random(1)
    rows: list[tuple[float, ...]] = [(1.0, 1.0)]
    tensors: list[tuple[int, tuple[int, ...], float]] = []
    for first in range(0, 36, 4):
        rows += [(float(random.randint(2, 9)), float(random.randint(2, 9))) for _ in range(4)]
        ways = range(first + 1, first + 4)
        tensors.append((first, tuple(ways), 100.0))
        tensors += [(way, (first + 4,), 100.0) for way in ways]
    found = moirai(workload(rows, tensors))
    assert found is not None and found.gap == 0
    assert "in 10 pieces" in found.why


def test_memory_couples_pieces() -> None:
    rows: list[tuple[float, ...]] = [(1.0, 3.0)] * 6
    chain: list[tuple[int, tuple[int, ...], float]] = [(n, (n + 1,), 0.0) for n in range(5)]
    found = moirai(workload(rows, chain, memory_bytes=(3.0, 9.0), task_bytes=(1.0,) * 6))
    assert found is not None and found.value_s == found.bound_s == 12.0


def test_without_or_tools_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ortools", "ortools.sat.python.cp_model"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install 'edgepart\[exact\]'"):
        moirai(workload([(1.0,)], []))


def test_a_search_that_is_not_patient_ends_when_nothing_better_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock counts looks; the model finds nothing, so that only climbing and windows are left."""
    nothing = SimpleNamespace(schedule=None, bound_s=0.0, ended=False)
    monkeypatch.setattr("edgepart.planner.placing.exact.moirai.solve", lambda *_, **__: nothing)
    monkeypatch.setattr("edgepart.planner.placing.exact.pieces.solve", lambda *_, **__: nothing)
    graph, looks = draw_workload("cells", Random(5), 140, 3), dict[bool, int]()
    told: list[float] = []
    for patient in (True, False):
        ticks = count()

        def clock(ticks: count[int] = ticks) -> float:
            return float(next(ticks))

        asked = Asked(clock, budget_s=400, patient=patient, tell=told.append if patient else Asked.tell)
        found = placer("moirai")(graph, asked)
        looks[patient] = next(ticks)
        assert "the later half of" in found.why
        if patient:
            assert told == sorted(told, reverse=True) and told[-1] >= found.value_s
    assert looks[False] < looks[True]


def test_everything_is_tried_before_a_search_loses_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kind of search takes half a minute, and no kind finds anything."""
    now_s, given = [0.0], list[float]()

    def searching(seconds: float) -> Callable[..., None]:
        def search(*_: object) -> None:
            now_s[0] += seconds

        return search

    monkeypatch.setattr(_MoiraiSearch, "_climb", searching(0.0))
    monkeypatch.setattr(_MoiraiSearch, "_piecewise", searching(30.0))
    monkeypatch.setattr(_MoiraiSearch, "_whole", lambda search, budget_s: given.append(budget_s))
    monkeypatch.setattr(_MoiraiSearch, "_window", searching(5.0))
    graph = draw_workload("cells", Random(5), 140, 3)
    placer("moirai")(graph, Asked(lambda: now_s[0], budget_s=60, patient=False))
    assert given == [15.0] and now_s == [35.0], "the whole has half of what is left; then comes one window"


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_steps_that_end_at_no_deadline_count_too(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contraction takes three seconds, climbing and the model all that they are given, and nothing else takes any."""
    now_s, contracted = [0.0], list[float]()

    def slow(*given: Any, **named: Any) -> Any:
        now_s[0] += 3.0
        contracted.append(now_s[0])
        return contract(*given, **named)

    def spend(found: Callable[..., Any]) -> Callable[..., Any]:
        def search(*given: Any, until: float, **_: object) -> Any:
            assert until <= 27.0 or not contracted, "another contraction may follow"
            now_s[0] = max(now_s[0], until)
            return found(*given)

        return search

    graph = draw_workload("cells", Random(5), 140, 3)
    start = found_by("m-etf", graph, objective)
    nothing = SimpleNamespace(schedule=None, placement=None, bound_s=0.0, ended=False)
    monkeypatch.setattr(module, "MODEL", 300)  # so that the graph is too big, and groups of it are not
    monkeypatch.setattr(module, "GROUPS", (40,))
    monkeypatch.setattr(module, "contract", slow)
    monkeypatch.setattr(module, "chain_bound", spend(lambda _: 0.0))
    monkeypatch.setattr(module, "solve", spend(lambda _: nothing))
    monkeypatch.setattr(module, "assign", spend(lambda _: nothing))
    stays = spend(lambda _, where: SimpleNamespace(best=Judged(np.array(where), inf, None, ())))
    monkeypatch.setattr(module, "climb", stays)
    monkeypatch.setattr(_MoiraiSearch, "_expand", lambda *_: None)
    placer("moirai")(graph, Asked(lambda: now_s[0], objective, budget_s=30.0, start=start))
    assert len(contracted) > 1 and 27.0 <= now_s[0] <= 30.0


def test_a_model_whose_making_takes_all_the_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = draw_workload("cells", Random(5), 60, 3)
    start = found_by("heft", graph).schedule
    assert start is not None
    ticks = count()
    monkeypatch.setattr(latency_model, "LOOK", 10)
    monkeypatch.setattr(latency_model._LatencyModel, "search", None)
    found = latency_model.solve(graph, clock=lambda: float(next(ticks)), until=3.0, start=start)
    assert found == latency_model.Solved(None, 0.0, ended=False)
    assert next(ticks) == 4, "the rest of the model is not made"
