"""Segment runs: the runs of one worker, one at a time: who waits, how a run is stopped, and what is made of one whose
process ended. Door: processes, the clock."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from edgepart.agent.wire.tensors import Value
from edgepart.agent.workers import orders
from edgepart.agent.workers.blame import Blame, Busy
from edgepart.agent.workers.engine_watch import EngineWatch
from edgepart.agent.workers.process import WorkerEnded, WorkerProcess
from edgepart.agent.workers.program_exchange import ProgramExchange
from edgepart.agent.workers.supervisor import Supervisor
from edgepart.planner.errors import Unavailable

GRACE_S = 2.0
"""Seconds between asking a run to end and ending its worker. Operators cannot be interrupted: a longer time more often
saves loading the programs again, a shorter one lets the device compute for other requests sooner."""


class SegmentRuns:
    """The runs of one worker. Thread-safe."""

    def __init__(self, supervisor: Supervisor, blame: Blame, engines: EngineWatch) -> None:
        self.turn = threading.Lock()
        """Guards runs, of which there is one at a time. While something else holds it, there is none."""
        self._supervisor = supervisor
        self._blame = blame
        self._engines = engines
        self._numbers = itertools.count(1)

    def run(
        self,
        program: ProgramExchange,
        segment: int,
        inputs: Sequence[Value],
        wanted: Callable[[], bool],
        overwrites: Sequence[tuple[int, int]] = (),
    ) -> list[Value]:
        """The same as `RunnableProgram.run`."""
        while True:
            process = self._await_process(wanted)
            with self.turn:
                if self._supervisor.process is not process:
                    continue  # The process ended while this run waited for its turn.
                if program.fault:
                    raise Unavailable(f"this program cannot be run: {program.fault}")
                number, one = next(self._numbers), program.program.segments[segment]
                self._blame.run = Busy(number, program.number, one, time.monotonic())
                try:
                    _check_wanted(wanted)
                    return program.run(process, number, segment, inputs, dict(overwrites))
                except WorkerEnded as end:
                    ambiguous, death = self._blame.is_ambiguous, self._supervisor.bury(end.process)
                    raise self._blame.explain_run(one, death, ambiguous) from end
                finally:
                    self._blame.run = None

    def _await_process(self, wanted: Callable[[], bool]) -> WorkerProcess:
        """The process, which is started if there is none. Raises Unavailable if it cannot be started, or if the run is no
        longer `wanted`."""
        process = self._supervisor.process
        if process is not None:
            return process
        with self._supervisor.ordering:
            _check_wanted(wanted)
            return self._supervisor.ensure()

    def stop(self, program: ProgramExchange) -> None:
        """End the program's run that is under way, if any. The same as `RunnableProgram.stop`."""
        run, process = self._blame.run, self._supervisor.process
        if process is None or run is None or run.program != program.number:
            return
        process.tell(orders.StopRun(run.number))
        process.kill_later(GRACE_S, lambda: self._find_endless(run))

    def _find_endless(self, run: Busy) -> str:
        """The reason to end the process if the run that was stopped is still under way; else ""."""
        if self._blame.run is not run:
            return ""
        self._engines.blame_if_hung(run.segment, time.monotonic() - run.began_s)
        return "a run that nobody waits for did not end"

    def time(self, program: ProgramExchange, segment: int, budget_s: float) -> float | None:
        """The same as `RunnableProgram.best_s`. It is also None if the worker ended meanwhile: the first request will
        say why."""
        with self._supervisor.ordering:
            process = self._supervisor.ensure()
            self._blame.timing = Busy(-1, program.number, program.program.segments[segment], time.monotonic())
            try:
                with self._blame.ambiguous():
                    answer = process.ask(orders.TimeSegment(program.number, segment, budget_s))
            except WorkerEnded as end:
                self._supervisor.bury(end.process)
                return None
            finally:
                self._blame.timing = None
        if answer[0] == orders.FAILED:
            raise orders.answer_to_error(answer)
        seconds: float | None = answer[1]
        return seconds


def _check_wanted(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise Unavailable("the run was stopped before it began")
