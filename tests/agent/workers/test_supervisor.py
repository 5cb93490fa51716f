"""Supervisor: a worker whose process ends gets another one, and nothing else is harmed."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import psutil
import pytest

from edgepart.agent.workers import supervisor
from edgepart.agent.workers.blame import CRASHES_TOLERATED
from edgepart.agent.workers.loading import ProgramLoading
from edgepart.agent.workers.process import WorkerProcess
from edgepart.planner.errors import Unavailable, WorkerDied
from tests.agent.workers.bench import LOWEST, Bench, divide, division, kill, process_of


def test_a_worker_asks_for_huge_pages(bench: Bench) -> None:
    bench.prepare(division())
    asked = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # A child of another test may have ended, and be known still.
            if "edgepart.agent.workers.worker" in child.cmdline():
                asked.add(child.environ()["GLIBC_TUNABLES"])
    assert asked == {"glibc.malloc.hugetlb=1"}


def test_a_request_that_kills_a_worker_kills_nothing_else(bench: Bench) -> None:
    program, other = bench.prepare(division()), bench.prepare(division(), deployment="other")
    assert divide(program, 7, 2) == divide(other, 7, 2) == [3, 3]
    with pytest.raises(WorkerDied, match="SIGFPE while it computed segment"):
        divide(program, LOWEST, -1)
    assert divide(other, 9, 2) == [4, 4]
    assert divide(program, 9, 2) == [4, 4]  # by a new worker
    assert bench.workers.deaths() == {"net": 1, "other": 0} and not bench.crashed


def test_values_of_other_requests_outlive_a_worker(bench: Bench) -> None:
    program = bench.prepare(division())
    (kept,) = program.run(0, [np.full(2, 8), np.full(2, 2)])
    with pytest.raises(WorkerDied):
        divide(program, LOWEST, -1)
    assert list(program.run(0, [kept, kept])[0]) == [1, 1]


def test_who_kills_a_worker_from_outside_blames_neither_request_nor_model(bench: Bench) -> None:
    program = bench.prepare(division())
    for _ in range(CRASHES_TOLERATED + 1):
        kill(program)
        while True:
            try:
                assert divide(program, 6, 2) == [3, 3]
                break
            except Unavailable:  # it died just then
                continue
    assert not bench.crashed


def test_a_worker_that_is_killed_while_it_loads_again_is_not_started_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills it when memory runs out. Starting it again and again without a pause would end nothing."""
    program, load = bench.prepare(division()), ProgramLoading.load
    killed: list[int] = []
    first = threading.Event()

    def load_and_be_killed(loading: ProgramLoading, process: WorkerProcess, *given: Any) -> None:
        if len(killed) < 5:
            killed.append(process._process.pid)
            os.kill(process._process.pid, signal.SIGKILL)
            first.set()
        load(loading, process, *given)

    monkeypatch.setattr(ProgramLoading, "load", load_and_be_killed)
    monkeypatch.setattr(supervisor, "RETRY_S", (3600.0, 3600.0))
    kill(program)
    assert first.wait(60)  # The thread that starts it again was there, and pauses now.
    with pytest.raises(Unavailable, match="SIGKILL while it loaded"):
        divide(program, 6, 2)
    assert len(killed) == 2 and not bench.crashed
    killed.extend([0] * 5)
    assert divide(program, 6, 2) == [3, 3]


def test_signals_that_a_whole_process_group_gets_end_no_worker(bench: Bench) -> None:
    """The agent hears them too, and still needs its workers for what is under way."""
    program = bench.prepare(division())
    process = process_of(program)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process._process.pid, number)
    assert divide(program, 9, 3) == [3, 3]
    assert process_of(program) is process and not bench.workers.deaths()["net"]


def test_no_worker_outlives_its_agent_that_was_just_starting_one(bench: Bench) -> None:
    program = bench.prepare(division())
    kill(program)  # another one is being started now
    bench.workers.stop()
    # Only the children themselves: agents that other tests share may run, with workers of their own.
    children = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in children if "edgepart.agent.workers.worker" in child.cmdline()]
