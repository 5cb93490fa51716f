"""The emulation of slow Python: with a fake clock, and in a process of its own, as for an agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.slowed import slow_environment

from edgepart.cli.emulation import slow_python
from edgepart.cli.emulation.slow_python import ThreadStretcher

FACTOR = 8.0


class FakeTime:
    """A clock on which one thread computes when it is told to, and sleeps."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.cpu_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def compute(self, seconds: float) -> None:
        self.now_s += seconds
        self.cpu_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(slow_python, "time", fake)
    return fake


@pytest.fixture
def exchange(clock: FakeTime) -> Callable[[float, float], float]:
    """Returns what makes a message, in so many CPU seconds, and sends it, in so many, and says when it was sent."""
    stretcher = ThreadStretcher(FACTOR)
    sent_s = SimpleNamespace(last=0.0)

    def send(seconds: float) -> None:
        clock.compute(seconds)
        sent_s.last = clock.now_s

    def message(making_s: float, sending_s: float) -> float:
        stretcher.call(lambda: None, "receive", False)
        clock.compute(making_s)
        stretcher.call(send, "send", True, sending_s)
        return float(sent_s.last)

    return message


def test_messages_leave_when_making_and_sending_them_took_so_many_times_as_long(
    clock: FakeTime, exchange: Callable[[float, float], float]
) -> None:
    exchange(2e-4, 1e-4)  # what sending takes is not known yet
    begun_s, took_s = exchange(2e-4, 1e-4), []
    for _ in range(9):
        sent_s = exchange(2e-4, 1e-4)
        took_s.append(sent_s - begun_s)
        begun_s = sent_s
    assert took_s == pytest.approx([FACTOR * 3e-4] * 9)


def test_a_disturbed_thread_does_not_sleep_longer(
    clock: FakeTime, exchange: Callable[[float, float], float]
) -> None:
    for _ in range(3):
        exchange(2e-4, 1e-4)
    before_s = clock.now_s
    exchange(4e-4, 1e-4)
    exchange(2e-4, 1e-4)
    assert clock.now_s - before_s == pytest.approx(FACTOR * 6e-4)


def test_long_computations_count_as_long_as_they_take(
    clock: FakeTime, exchange: Callable[[float, float], float]
) -> None:
    for _ in range(3):
        exchange(2e-4, 1e-4)
    before_s = clock.now_s
    exchange(0.5, 1e-4)
    assert clock.now_s - before_s == pytest.approx(FACTOR * (0.5 + 1e-4), rel=1e-3)


def test_runs_of_models_are_left_out(clock: FakeTime) -> None:
    stretcher = ThreadStretcher(FACTOR)
    stretcher.call(lambda: None, "receive", False)
    clock.compute(0.5)
    stretcher.leave_out()
    before_s = clock.now_s
    stretcher.call(lambda: None, "send", True)
    assert clock.now_s == before_s


SCRIPT = """
import json, socket, sys, threading, time
begun = time.thread_time()
slept = []
time.sleep = slept.append
one, other = socket.socketpair()
while time.thread_time() < begun + 0.02:
    pass
one.sendall(b"x" * 100)
got = bytearray(100)
other.recv_into(got)
event = threading.Event()
thread = threading.Thread(target=event.set)
thread.start()
event.wait()
print(json.dumps({"got": got.decode(), "slept": slept}))
"""


def run_script(**more: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **slow_environment(1.0, FACTOR), **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        return done.stderr
    return json.loads(done.stdout)


def test_a_process_is_slowed_and_sends_what_it_would() -> None:
    found = run_script()
    assert found["got"] == "x" * 100
    assert sum(found["slept"]) > (FACTOR - 1) * 0.02


def test_a_wrong_factor_ends_the_process() -> None:
    assert "EDGEPART_LAB_SLOW_PYTHON='fast'" in run_script(EDGEPART_LAB_SLOW_PYTHON="fast")


def test_the_environment_of_a_slow_agent_names_the_folder_that_slows_it_down() -> None:
    folder = slow_environment(8.0)["PYTHONPATH"].split(os.pathsep)[0]
    assert Path(folder, "sitecustomize.py").is_file()
