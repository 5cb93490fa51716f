"""Serial schedules keep every rule, whatever the order; they let machines wait; and they are those of what is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from random import Random
from typing import Any

import numpy as np
import pytest

from edgepart.planner.placing.engine import flat_serial, judge, serial
from edgepart.planner.placing.engine.dispatch import dispatch, upward_ranks
from edgepart.planner.placing.engine.evaluate import find_shortest
from edgepart.planner.placing.engine.flat_workload import flatten, unflatten
from edgepart.planner.placing.engine.judge import Judged, book_in_order, judge_of, prepare
from edgepart.planner.placing.problem.checker import violations
from edgepart.planner.placing.problem.schedule import PlacementFound, PlacementSchedule
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.engine.test_flat_dispatch import assert_critical, draw_workload
from tests.planner.placing.workloads import workload


def as_written() -> Any:
    spec = spec_from_file_location("flat_serial_as_written", flat_serial.__file__)
    assert spec is not None and spec.loader is not None
    plain = module_from_spec(spec)
    spec.loader.exec_module(plain)
    return plain


def use(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have serial schedules computed on lists, on arrays as written, or compiled."""
    if kind == "compiled":
        pytest.importorskip("numba", reason="of the extra [climb]")
        assert prepare()
        return
    monkeypatch.setattr(judge._Prepared, "code", None)
    if kind == "as written":
        monkeypatch.setattr(judge, "serial", as_written())


KINDS = "on lists", "as written", "compiled"


@pytest.fixture(params=KINDS)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use(request.param, monkeypatch)
    yield


def booked(graph: Workload, placement: list[int], start_s: list[float]) -> PlacementSchedule:
    where = np.array(placement)
    return unflatten(where, book_in_order(flatten(graph), where, start_s))


def test_every_order_keeps_every_rule(code: None) -> None:
    random = Random(11)
    for _ in range(80):
        graph = draw_workload(random)
        placement = [random.randrange(len(graph.machines)) for _ in graph.tasks]
        if any(task.compute_s[m] == float("inf") for task, m in zip(graph.tasks, placement, strict=True)):
            continue
        starts = dispatch(graph, placement, [random.random() for _ in placement]).start_s
        for order in (starts, [-rank for rank in upward_ranks(graph, placement)]):
            made = booked(graph, placement, list(order))
            found = PlacementFound(tuple(placement), made.makespan_s, made)
            assert not violations(graph, found)


@pytest.mark.parametrize("plain", [serial, as_written()], ids=KINDS[:2])
def test_compiled_and_not_compiled_are_the_same(plain: Any) -> None:
    pytest.importorskip("numba", reason="of the extra [climb]")
    assert prepare()
    random = Random(3)
    for _ in range(40):
        graph = draw_workload(random)
        flat, where = flatten(graph), np.array([random.randrange(len(graph.machines)) for _ in graph.tasks])
        order = np.array(graph.order)
        one, other = (module.schedule_in_order(flat, where, order) for module in (plain, flat_serial))
        assert all(
            np.array_equal(a, b) and np.shape(a) == np.shape(b) for a, b in zip(one, other, strict=True)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_mean_ranks_are_those_of_the_record(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kind, monkeypatch)
    random = Random(8)
    for _ in range(40):
        graph = draw_workload(random)
        assert judge.mean_ranks(graph).tolist() == upward_ranks(graph)


WAITING = workload(
    # The long task may begin at once on the machine that the urgent one needs a moment later.
    [(1.0, 9.0), (9.0, 1.0), (9.0, 10.0), (10.0, 9.0), (9.0, 1.0)],
    [(0, (1,), 10.0), (1, (2,), 10.0)],
)
PLACEMENT = [0, 1, 0, 1, 1]


def test_a_machine_waits_for_something_better() -> None:
    made = booked(WAITING, PLACEMENT, [0.0, 1.1, 2.2, 3.0, 12.0])
    ranks = [[-start for start in order] for order in ([0, 1.1, 2.2, 3.0, 12.0], [0, 1, 2, 3, 4])]
    never = min(dispatch(WAITING, PLACEMENT, one).makespan_s for one in ranks)
    assert made.start_s[3] > made.start_s[1] and made.makespan_s < never
    assert find_shortest(WAITING, PLACEMENT).makespan_s <= made.makespan_s


def test_a_gap_that_is_long_enough_is_used() -> None:
    made = booked(WAITING, PLACEMENT, [0.0, 1.1, 2.2, 3.0, 12.0])
    assert made.start_s[4] == 0.0  # It was booked last, and takes as long as the gap before the urgent task.


@pytest.mark.parametrize("kind", KINDS)
def test_what_waits_is_judged_by_what_waits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kind, monkeypatch)
    made, where = booked(WAITING, PLACEMENT, [0.0, 1.1, 2.2, 3.0, 12.0]), np.array(PLACEMENT)
    judged = judge_of(WAITING, "latency")
    plain = judged(where, Judged(where, made.makespan_s, made, ()))
    waiting = judged(where, Judged(where, made.makespan_s, made, (), in_order=True))
    assert waiting.in_order and not plain.in_order
    assert waiting.value_s == pytest.approx(made.makespan_s) and waiting.value_s < plain.value_s
    assert waiting.schedule is not None
    assert_critical(WAITING, waiting.schedule, tuple(int(task) for task in waiting.busy))
