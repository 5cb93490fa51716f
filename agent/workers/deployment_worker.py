"""Deployment worker: the worker of one deployment, as its agent uses it: programs are loaded into it and released. Door:
processes, their connections, shared memory.

A worker that ends is started again, with all of its programs. Its end is blamed on what it was doing: a run (WorkerDied),
which is tried once more, or the loading of a program, which is tried once more with no run beside it and then given up
(CrashError). Requests that only waited continue, as their values lie in the agent's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from edgepart.agent.engines.verdicts import CRASHES
from edgepart.agent.workers import orders
from edgepart.agent.workers.blame import Blame
from edgepart.agent.workers.engine_watch import EngineWatch
from edgepart.agent.workers.loading import ProgramLoading
from edgepart.agent.workers.process import WorkerEnded, WorkerProcess
from edgepart.agent.workers.program_exchange import ProgramExchange
from edgepart.agent.workers.remote_program import RemoteProgram
from edgepart.agent.workers.segment_runs import SegmentRuns
from edgepart.agent.workers.shared_memory import SharedMemory
from edgepart.agent.workers.supervisor import Supervisor
from edgepart.planner.errors import EdgepartError, Unavailable
from edgepart.planner.plans.plan import Program, Transfer

log = logging.getLogger(__name__)


class Worker:
    """The worker of one deployment, which outlives the processes that it starts. Thread-safe."""

    def __init__(
        self,
        name: str,
        settings: orders.WorkerSettings,
        shared_bytes: int,
        crashed: Callable[[str], None],
        engines: EngineWatch,
    ) -> None:
        """`crashed` is called, once, with the reason why the model is to be set aside."""
        self.name = name
        self._engines = engines
        self._memory = SharedMemory(shared_bytes)
        self._blame = Blame(engines, crashed)
        self._loading = ProgramLoading(name, self._blame, engines)
        self._supervisor = Supervisor(
            name, settings, self._memory, self._loading.load_all, self._blame.blame_engine
        )
        self._runs = SegmentRuns(self._supervisor, self._blame, engines)
        self._explained: WorkerProcess | None = None
        """The process whose end is put down to the program that was loaded last."""

    def get_ready(self) -> None:
        """Start the process if there is none. What that fails with, the next program that is prepared meets again."""
        try:
            with self._supervisor.ordering:
                self._supervisor.ensure()
        except (EdgepartError, WorkerEnded) as error:
            log.info("the worker of %s is not started in advance: %s", self.name, error)

    def prepare(
        self, number: int, program: Program, transfers: Sequence[Transfer], rest: Callable[[float], None]
    ) -> RemoteProgram:
        """Load the program's sessions. Raises InternalError if they cannot be made, CrashError if making them ends the
        process, and Unavailable if there is no worker now."""
        made = ProgramExchange(number, program, tuple(transfers), self._memory, self._engines)
        with self._supervisor.ordering:
            try:
                with self._blame.ambiguous():
                    self._loading.load_first(self._supervisor.ensure(), made, rest)
            except WorkerEnded as end:
                self._load_alone(made, rest, end)
            self._loading.keep(made)
        return RemoteProgram(made, self._runs)

    def _load_alone(self, made: ProgramExchange, rest: Callable[[float], None], end: WorkerEnded) -> None:
        """Load a program once more after `end`, with no run beside it. Either a run or the loading ended the worker; this
        shows which."""
        if end.process is self._explained:
            raise Unavailable("the worker ended while it loaded another plan first") from end
        self._explained = end.process
        death = self._supervisor.bury(end.process)
        if death.ordered and self._engines.settle(made.program) == made.program:
            raise Unavailable(f"the worker {death}") from end
        if death.is_crash:
            self._engines.blame_all(made.program, CRASHES, f"the worker {death} while sessions were made")
        with self._runs.turn:
            try:
                self._loading.load(self._supervisor.ensure(), made, rest)
            except WorkerEnded as again:
                death = self._supervisor.bury(again.process)
                raise self._blame.explain_loading(made.program, death) from again

    def abandon(self) -> None:
        """End the loading of the present program after a while, as nothing waits for it any longer."""
        process = self._supervisor.process
        if process is not None:
            self._loading.abandon(process)

    def release(self, program: ProgramExchange) -> None:
        """Forget a program."""
        self._loading.drop(program)
        program.fault = program.fault or "its plan is not loaded here any more"
        for process in self._supervisor.processes:
            process.tell(orders.ReleaseProgram(program.number))

    def close(self) -> None:
        """End the process, even during a run."""
        self._supervisor.close()
        self._memory.close()

    def join(self) -> None:
        """Wait, after `close`, until the process is gone, even if it was just being started."""
        self._supervisor.join()

    def give_back(self) -> None:
        """Return memory that neither the worker nor its values need to the operating system."""
        self._memory.give_back()
        process = self._supervisor.process
        if process is not None:
            process.tell(orders.ReturnFreedMemory())

    @property
    def pid(self) -> int | None:
        """The id of the worker's process; None if there is none."""
        process = self._supervisor.process
        return process.pid if process is not None else None

    @property
    def own_bytes(self) -> int:
        """Bytes of memory that the worker's process shares with no other; 0 if there is no process."""
        process = self._supervisor.process
        return process.own_bytes() if process is not None else 0

    @property
    def deaths(self) -> int:
        """Number of this worker's processes that ended without being told to."""
        return self._supervisor.deaths
