"""Device workers: when a worker is started and ended, and which program is loaded first."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import psutil
import pytest

from edgepart.agent.execution.prepared import LoadUrgency
from edgepart.agent.workers.remote_program import RemoteProgram
from edgepart.planner.errors import Unavailable
from tests.agent.workers.bench import Bench, counting, divide, division, doubling, kill, process_of
from tests.waiting import BOUND_S, eventually


def test_a_released_program_is_not_run_and_the_last_one_ends_the_worker(bench: Bench) -> None:
    program = bench.prepare(division())
    divide(program, 4, 2)
    process = process_of(program)
    bench.workers.release(program)
    assert process.death().ordered
    with pytest.raises(Unavailable):
        divide(program, 4, 2)


def test_a_worker_can_be_started_before_there_is_a_program(bench: Bench) -> None:
    with bench.workers.getting_ready("net", "digest"):
        eventually(lambda: len(bench.workers.processes()) == 1)
        (process,) = bench.workers.processes()
        program = bench.prepare(division())
    assert divide(program, 9, 3) == [3, 3]
    assert bench.workers.processes() == [process]
    bench.workers.release(program)
    assert bench.workers.processes() == []


def test_a_worker_for_which_no_program_came_ends(bench: Bench) -> None:
    with bench.workers.getting_ready("net", "digest"):
        eventually(lambda: len(bench.workers.processes()) == 1)
        (process,) = bench.workers.processes()
    eventually(
        lambda: not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    )
    with bench.workers.getting_ready("net", "digest"):
        pass  # It may be starting when the block ends.
    assert bench.workers.processes() == [] and not bench.workers.deaths()
    bench.workers.stop()
    with pytest.raises(Unavailable, match="stops"), bench.workers.getting_ready("net", "digest"):
        pass


def overtake(
    bench: Bench, deployment: str, meanwhile: Callable[[], object] = lambda: None
) -> tuple[RemoteProgram, Future[RemoteProgram]]:
    """Load a program, and another one for which requests wait as soon as the first one has one of its two sessions. The
    second session is not made before the other program is loaded."""
    asked: list[Future[RemoteProgram]] = []
    with ThreadPoolExecutor() as threads:

        def ask(took_s: float) -> None:
            if asked:
                asked[0].result(BOUND_S)
                return
            urgency = LoadUrgency.AWAITED
            asked.append(threads.submit(bench.prepare, doubling(), deployment=deployment, urgency=urgency))
            eventually(lambda: bench.workers._turns.waiting)
            meanwhile()

        bench.resting = ask
        return bench.prepare(counting(), division()), asked[0]


@pytest.mark.parametrize("deployment", ["net@1", "other@1"])
def test_what_requests_wait_for_comes_before_the_rest_of_a_program_that_is_being_loaded(
    bench: Bench, deployment: str
) -> None:
    first, awaited = overtake(bench, deployment)
    assert awaited.result().run(0, [np.array([3, 4])])[0].tolist() == [6, 8]
    assert first.run(0, [np.array([3])])[0].tolist() == [24]
    assert first.run(1, [np.full(2, 7), np.full(2, 2)])[0].tolist() == [3, 3]


def test_a_worker_that_ends_while_another_program_comes_first_is_not_held_against_the_one_that_waits(
    bench: Bench,
) -> None:
    serves = bench.prepare(division())
    with suppress(Unavailable):  # Unless its end was seen before the other program was loaded.
        first, _ = overtake(bench, "net@1", lambda: kill(serves))
        assert first.run(0, [np.array([3])])[0].tolist() == [24]
    assert bench.crashed == []
    assert bench.prepare(doubling()).run(0, [np.array([3, 4])])[0].tolist() == [6, 8]
    assert divide(serves, 7, 2) == [3, 3]
