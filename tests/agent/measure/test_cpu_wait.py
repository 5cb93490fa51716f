"""What the system tells of threads, and what is told when they wait for the CPU: made-up files, made-up time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from edgepart.agent.cluster.state.events import StarvationSeen
from edgepart.agent.host.system import thread_times
from edgepart.agent.measure.cpu_wait import CpuWaitWatch
from edgepart.agent.measure.starvation import ThreadTimes
from edgepart.agent.wire.control import Starved


def write(proc: Path, process: int, thread: int, text: str) -> None:
    folder = proc / str(process) / "task" / str(thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(text)


def test_threads_of_several_processes_are_read(tmp_path: Path) -> None:
    write(tmp_path, 7, 7, "5 6 7\n")
    write(tmp_path, 7, 8, "50 60 70\n")
    write(tmp_path, 9, 9, "1 2 3\n")
    assert thread_times([7, 9], tmp_path) == {7: (5, 6), 8: (50, 60), 9: (1, 2)}


def test_what_the_kernel_does_not_tell_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, 7, 7, "")
    write(tmp_path, 7, 8, "nonsense of three\n")
    (tmp_path / "7/task/9").mkdir()
    assert thread_times([7, 12345], tmp_path) == {}


def test_this_process_is_told_of_as_its_kernel_does_it() -> None:
    found = thread_times([os.getpid()])
    assert bool(found) == Path(f"/proc/{os.getpid()}/schedstat").exists()
    assert all(on_cpu >= 0 and waiting >= 0 for on_cpu, waiting in found.values())


class Machine:
    """In place of the system."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[Starved] = []
        self.asked: list[set[int]] = []
        self._times = (0, 0)

    def starving(self) -> CpuWaitWatch:
        return CpuWaitWatch(
            lambda: [77], lambda seen: self.told.append(seen.starved), self.read, lambda: self.now
        )

    def read(self, processes: Iterable[int]) -> ThreadTimes:
        self.asked.append(set(processes))
        return {1: self._times}

    def passes(self, ran_s: float, waited_s: float) -> None:
        self.now += 2.0
        ran, waited = self._times
        self._times = ran + round(ran_s * 1e9), waited + round(waited_s * 1e9)


def test_news_is_posted_once() -> None:
    machine = Machine()
    starving = machine.starving()
    found = []
    for waited_s in (0.0, 1.5, 1.5, 1.5, *[0.0] * 8):
        machine.passes(0.5, waited_s)
        found.append(starving.look())
    assert found == [False, True, True, True, *[False] * 8]
    assert [told.share > 0 for told in machine.told] == [True, False]
    assert machine.asked[0] == {os.getpid(), 77}
    assert StarvationSeen(machine.told[-1]) == StarvationSeen(Starved())


def test_a_measurement_between_two_looks_is_judged_by_itself() -> None:
    machine = Machine()
    starving = machine.starving()
    before = starving.read()
    machine.passes(0.5, 0.0)
    assert not starving.spoilt_since(before, 2.0)
    machine.passes(0.5, 3.0)
    assert starving.spoilt_since(before, 4.0)
    for _ in range(100):
        machine.passes(0.5, 1.5)
        starving.look()
    before = starving.read()
    machine.passes(0.5, 1.5)
    assert not starving.spoilt_since(before, 2.0)  # that is how it is here
