"""Engines in workers: what an engine does while sessions are made, timed and run is its own fault and not the model's; the
CPU computes from then on. Real processes with an engine that is made up; its faults are real."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

from edgepart.agent.engines.catalogue import EngineKind
from edgepart.agent.engines.verdicts import CRASHES, FAILS, HANGS, EngineVerdict, VerdictBook
from edgepart.agent.storage.store import Store
from edgepart.agent.workers import engine_watch, loading, segment_runs
from edgepart.agent.workers.device_workers import Workers
from edgepart.agent.workers.engine_watch import EngineWatch
from edgepart.agent.workers.orders import WorkerSettings
from edgepart.agent.workers.remote_program import RemoteProgram
from edgepart.planner.errors import RequestError, WorkerDied
from edgepart.planner.plans.plan import Program, Receive, Run, Segment
from edgepart.planner.region import Array
from tests.agent import handmade
from tests.lab_engine import LAB, give_lab_engine

SEGMENT = handmade.split_plan().programs["a"].segments[0]
X = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype(np.float32)


class Bench:
    """Workers whose programs name an engine, and what was found of it."""

    def __init__(self, folder: Path) -> None:
        store = Store(folder / "store")
        store.put_bytes(handmade.weight("w1").tobytes())
        self.book = VerdictBook()
        self.crashed: list[str] = []
        self.workers = Workers(
            WorkerSettings(store.root, folder / "compiled", 0, 1),
            1 << 33,
            crashed=lambda deployment, model, why: self.crashed.append(why),
            engines=EngineWatch(self.book.settle, self._noted),
        )

    def _noted(self, segment: Segment, verdict: EngineVerdict) -> None:
        assert segment.engine == LAB
        self.book.note(verdict)

    def prepare(self) -> RemoteProgram:
        segments = (replace(SEGMENT, engine=LAB),)
        return self.workers.prepare("net", "digest", Program("a", (Receive(0), Run(0)), segments, 0, 0), ())

    def outcomes(self) -> list[tuple[str, str, str]]:
        return [(one.engine, one.segment, one.outcome) for one in self.book.all()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.workers.stop()


@pytest.fixture
def right(bench: Bench) -> Array:
    """The CPU's answer."""
    program = Program("a", (Receive(0), Run(0)), (SEGMENT,), 0, 0)
    prepared = bench.workers.prepare("other", "digest", program, ())
    (found,) = prepared.run(0, [X])
    bench.workers.release(prepared)
    return np.array(found)


def refused(outcome: str) -> list[tuple[str, str, str]]:
    return [(LAB, SEGMENT.digest, outcome)]


def same(program: RemoteProgram, right: Array) -> None:
    (found,) = program.run(0, [X])
    np.testing.assert_allclose(found, right, rtol=1e-5)


def test_a_segment_runs_on_its_engine(bench: Bench, right: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    give_lab_engine(monkeypatch, "lab,lies=Conv")  # A lie shows who computes; trials keep it from serving.
    program = bench.prepare()
    (found,) = program.run(0, [X])
    np.testing.assert_allclose(found, right + 1, rtol=1e-5)
    assert bench.outcomes() == []


@pytest.mark.parametrize(
    ("engine", "outcome"),
    [("lab,lacks=Conv", FAILS), ("lab,crashes=Conv", CRASHES), ("other", FAILS)],
)
def test_an_engine_that_fails_while_sessions_are_made_is_left(
    bench: Bench, right: Array, monkeypatch: pytest.MonkeyPatch, engine: str, outcome: str
) -> None:
    give_lab_engine(monkeypatch, engine)
    program = bench.prepare()
    assert [one.engine for one in program.program.segments] == [""]
    same(program, right)
    assert bench.outcomes() == refused(outcome)
    assert not bench.crashed


def test_an_engine_that_hangs_while_sessions_are_made_is_left(
    bench: Bench, right: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        loading, "kind_of", lambda name: EngineKind(name, "LabExecutionProvider", trial_s=3.0)
    )
    give_lab_engine(monkeypatch, "lab,hangs=Conv")
    program = bench.prepare()
    same(program, right)
    assert bench.outcomes() == refused(HANGS)
    assert not bench.crashed


def test_an_engine_that_crashes_while_it_serves_costs_one_run_and_is_left(
    bench: Bench, right: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_lab_engine(monkeypatch, "lab,crashes=Conv@3")
    program = bench.prepare()  # The first run is the warm-up.
    same(program, right)
    with pytest.raises(WorkerDied, match="on lab"):
        program.run(0, [X])
    for _ in range(4):
        same(program, right)
    assert bench.outcomes() == refused(CRASHES)
    assert not bench.crashed


def test_an_engine_that_crashes_while_it_is_timed_is_left(
    bench: Bench, right: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_lab_engine(monkeypatch, "lab,crashes=Conv@2")
    program = bench.prepare()
    assert program.best_s(0, 1.0) is None
    same(program, right)
    assert bench.outcomes() == refused(CRASHES)


def test_a_run_in_which_an_engine_fails_is_made_by_the_cpu(
    bench: Bench, right: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_lab_engine(monkeypatch, "lab,fails=Conv@3")
    program = bench.prepare()
    for _ in range(5):
        same(program, right)
    assert bench.outcomes() == refused(FAILS)
    assert [one.engine for one in program.program.segments] == [""]


def stop_when_running(program: RemoteProgram) -> None:
    Timer(1.0, program.stop).start()


def test_an_engine_that_hangs_while_it_serves_is_left(
    bench: Bench, right: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_runs, "GRACE_S", 0.1)
    monkeypatch.setattr(engine_watch, "ENGINE_HANGS_S", 0.5)
    give_lab_engine(monkeypatch, "lab,hangs=Conv@2")
    program = bench.prepare()
    stop_when_running(program)
    with pytest.raises(RequestError, match="was stopped"):
        program.run(0, [X])
    same(program, right)
    assert bench.outcomes() == refused(HANGS)


def test_a_run_that_is_only_long_is_no_fault_of_its_engine(
    bench: Bench, right: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_runs, "GRACE_S", 0.1)
    give_lab_engine(monkeypatch, "lab,hangs=Conv@2")
    program = bench.prepare()
    stop_when_running(program)
    with pytest.raises(RequestError, match="was stopped"):
        program.run(0, [X])
    assert bench.outcomes() == []


def test_a_request_that_the_cpu_does_not_take_either_is_to_blame_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_lab_engine(monkeypatch, "lab")
    program = bench.prepare()
    with pytest.raises(RequestError):
        program.run(0, [X[:, :, :1, :1]])
    assert bench.outcomes() == []
