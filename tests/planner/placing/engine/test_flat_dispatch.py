"""Schedules on arrays are those of dispatch.py, to the last bit; compiled, and as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from edgepart.planner.placing.engine import compiler
from edgepart.planner.placing.engine.dispatch import dispatch, upward_ranks
from edgepart.planner.placing.engine.flat_workload import flatten, unflatten
from edgepart.planner.placing.engine.judge import dispatcher_of, find_critical_chain, judge_of, prepare
from edgepart.planner.placing.engine.load import loads
from edgepart.planner.placing.problem.schedule import PlacementSchedule
from edgepart.planner.placing.problem.workload import Machine, SharedMedium, Task, TaskTensor, Workload
from tests.planner.placing.workloads import INF, workload

NAME = "edgepart.planner.placing.engine.flat_dispatch"


def draw_workload(random: Random) -> Workload:
    """A workload with all that one may have: whole times (so that much happens at once), tasks that cannot run everywhere,
    times of transfers that are given, machines that do one thing at a time."""
    tasks, machines, whole = random.choice([1, 2, 5, 20, 60]), random.randint(1, 6), random.random() < 0.5

    def number(least: float, most: float) -> float:
        return float(random.randint(int(least), int(most))) if whole else random.uniform(least, most)

    rows = [
        tuple(INF if random.random() < 0.03 else number(0, 20) for _ in range(machines)) for _ in range(tasks)
    ]
    pairs = [(a, b) for a in range(machines) for b in range(machines) if a != b]
    tensors = []
    for source in range(tasks - 1):
        for _ in range(random.choice([0, 1, 1, 2])):
            last = min(tasks - 1, source + 40)
            readers = {random.randint(source + 1, last) for _ in range(random.randint(1, 4))}
            given = (
                {pair: number(0, 9) for pair in pairs if random.random() < 0.5}
                if random.random() < 0.3
                else {}
            )
            tensors.append(TaskTensor(source, tuple(sorted(readers)), number(0, 500), given))
    return Workload(
        "drawn",
        tuple(Machine(f"m{n}", "kind") for n in range(machines)),
        tuple(Task(f"t{n}", "Op", row) for n, row in enumerate(rows)),
        tuple(tensors),
        tuple(tuple(INF if a == b else number(50, 200) for b in range(machines)) for a in range(machines)),
        tuple(tuple(0.0 if a == b else number(0, 3) for b in range(machines)) for a in range(machines)),
        overlap=random.random() < 0.8,
        media=tuple(draw_media(random, pairs)),
    )


def draw_media(random: Random, pairs: list[tuple[int, int]]) -> Iterator[SharedMedium]:
    """At times some media that some links share, in one direction or in both."""
    for number in range(random.choice([0, 0, 1, 3])):
        shared = random.sample(pairs, random.randint(0, len(pairs)))
        back = random.random() < 0.5
        yield SharedMedium(f"w{number}", frozenset([*shared, *((b, a) for a, b in shared if back)]))


def draw_ranks(random: Random, count: int) -> list[float] | None:
    """None for upward ranks; or ranks of any sign, some of them equal."""
    kinds = [
        None,
        [float(random.randint(-5, 5)) for _ in range(count)],
        [-random.uniform(0, 50) for _ in range(count)],
    ]
    return kinds[random.randrange(3)]


@pytest.fixture(scope="module", params=["as written", "compiled"])
def code(request: pytest.FixtureRequest) -> Any:
    if request.param == "compiled":
        pytest.importorskip("numba", reason="of the extra [climb]")
        assert prepare()
        return import_module(NAME)
    module = import_module(NAME)
    spec = spec_from_file_location("flat_dispatch_as_written", module.__file__)
    assert spec is not None and spec.loader is not None
    plain = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "INSTALLED", False)
        spec.loader.exec_module(plain)
    return plain


def test_schedules_ranks_and_loads_are_the_same(code: Any) -> None:
    random = Random(23)
    for _ in range(60):
        drawn = draw_workload(random)
        flat, count = flatten(drawn), len(drawn.tasks)
        for _ in range(5):
            placement = [random.randrange(len(drawn.machines)) for _ in drawn.tasks]
            where, ranks = np.array(placement), draw_ranks(random, count)
            upward = code.rank_upward(flat, where)
            assert upward.tolist() == upward_ranks(drawn, placement)
            made = code.schedule(flat, where, upward if ranks is None else np.array(ranks))
            assert unflatten(where, made) == dispatch(drawn, placement, ranks)
            assert code.loads(flat, where).tolist() == pytest.approx(loads(drawn, placement), rel=1e-12)
            chain = code.chain(
                made.start_s + flat.compute_s[np.arange(count), where], made.waited_for
            ).tolist()
            assert_critical(drawn, unflatten(where, made), chain)


def test_the_chain_of_a_record_is_critical() -> None:
    random = Random(5)
    for _ in range(200):
        drawn = draw_workload(random)
        found = dispatch(drawn, [random.randrange(len(drawn.machines)) for _ in drawn.tasks])
        assert_critical(drawn, found, find_critical_chain(drawn, found))


def assert_critical(drawn: Workload, made: PlacementSchedule, chain: list[int] | tuple[int, ...]) -> None:
    """It begins with what ends last, and each of the others ended no later than the one before began."""
    ends = [s + t.compute_s[m] for s, t, m in zip(made.start_s, drawn.tasks, made.placement, strict=True)]
    assert ends[chain[0]] == max(ends) and len(set(chain)) == len(chain)
    for task, waited_for in pairwise(chain):
        assert ends[waited_for] <= made.start_s[task]
        reads = waited_for in drawn.before[task]
        assert reads or made.placement[task] == made.placement[waited_for]
    if made.makespan_s < INF:
        assert not drawn.before[chain[-1]] or made.start_s[chain[-1]] == 0.0


def test_what_judges_is_as_exact_whether_it_is_compiled_or_not() -> None:
    pytest.importorskip("numba", reason="of the extra [climb]")
    random = Random(7)
    for _ in range(50):
        drawn = draw_workload(random)
        placement = [random.randrange(len(drawn.machines)) for _ in drawn.tasks]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("edgepart.planner.placing.engine.judge._Prepared.code", None)
            plain = {
                name: judge_of(drawn, name)(np.array(placement), None) for name in ("latency", "throughput")
            }
            by_rank = dispatcher_of(drawn)(placement, None)
        assert prepare()
        assert dispatcher_of(drawn)(placement, None) == by_rank
        for name, one in plain.items():
            judged = judge_of(drawn, name)(np.array(placement), None)
            assert judged.value_s == pytest.approx(one.value_s, rel=1e-12)
            assert judged.placement == one.placement and judged.schedule == one.schedule


def test_without_the_extra_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepart.planner.placing.engine.judge.INSTALLED", False)
    monkeypatch.setattr("edgepart.planner.placing.engine.judge._Prepared.code", None)
    assert not prepare()


def test_negative_ranks_keep_their_order() -> None:
    """The tensor that the task with the larger rank reads is sent first, whatever the sign of the ranks."""
    fan = workload([(1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (9.0, 9.0, 9.0)], [(0, (1,), 100.0), (0, (2,), 100.0)])
    for shift in (0.0, -100.0):
        found = dispatch(fan, (0, 1, 2), [shift + 9.0, shift + 1.0, shift + 5.0])
        assert [transfer.target for transfer in found.transfers] == [2, 1]
