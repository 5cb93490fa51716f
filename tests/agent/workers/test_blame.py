"""Blame: what the end of a process means for the run, the engine and the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgepart.agent.workers.blame import CRASHES_TOLERATED, Blame
from edgepart.agent.workers.death import Death
from edgepart.agent.workers.engine_watch import EngineWatch
from edgepart.planner.errors import EdgepartError, RequestError, Unavailable, WorkerDied
from tests.agent.workers.bench import LOWEST, Bench, divide, division

SEGMENT = division()
STOPPED, KILLED, CRASHED = Death(-9, "it took long"), Death(-9), Death(-8)


@pytest.mark.parametrize(
    ("death", "ambiguous", "engine", "error", "text"),
    [
        (STOPPED, False, "", RequestError, "was stopped: it took long"),
        (STOPPED, True, "lab", RequestError, "was stopped: it took long"),
        (KILLED, False, "", Unavailable, "ended with SIGKILL while it computed"),
        (CRASHED, True, "", Unavailable, "ended with SIGFPE while it computed"),
        (CRASHED, False, "lab", WorkerDied, "on lab"),
        (CRASHED, False, "", WorkerDied, "ended with SIGFPE while it computed"),
    ],
)
def test_a_run_whose_process_ended_is_explained(
    death: Death, ambiguous: bool, engine: str, error: type[EdgepartError], text: str
) -> None:
    found = Blame(EngineWatch(), lambda why: None).explain_run(
        replace(SEGMENT, engine=engine), death, ambiguous
    )
    assert type(found) is error and text in str(found)


def test_only_crashes_that_nothing_else_explains_set_a_model_aside() -> None:
    crashed: list[str] = []
    blame = Blame(EngineWatch(), crashed.append)
    for _ in range(CRASHES_TOLERATED):
        blame.explain_run(SEGMENT, CRASHED, ambiguous=True)
        blame.explain_run(replace(SEGMENT, engine="lab"), CRASHED, ambiguous=False)
        blame.explain_run(SEGMENT, KILLED, ambiguous=False)
    assert crashed == []
    for _ in range(CRASHES_TOLERATED + 1):
        blame.explain_run(SEGMENT, CRASHED, ambiguous=False)
    assert len(crashed) == 1


def test_a_model_that_kills_worker_after_worker_is_set_aside(bench: Bench) -> None:
    program = bench.prepare(division())
    for count in range(CRASHES_TOLERATED):
        assert len(bench.crashed) == 0, count
        with pytest.raises(WorkerDied):
            divide(program, LOWEST, -1)
    ((deployment, model, why),) = bench.crashed
    assert (deployment, model) == ("net", "digest") and "crashes ONNX Runtime (3 times" in why
