"""Loading: the programs of one worker, and how they get into its processes: each one first of all, and all of them again
when a process follows another one. Door: processes.

An engine that fails or hangs meanwhile is left. A program that ends a process into which programs are loaded again is
dropped, so that the others serve.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edgepart.agent.engines.catalogue import kind_of
from edgepart.agent.engines.verdicts import FAILS, HANGS
from edgepart.agent.workers import orders
from edgepart.agent.workers.blame import Blame
from edgepart.agent.workers.engine_watch import EngineWatch
from edgepart.agent.workers.process import WorkerEnded, WorkerProcess
from edgepart.agent.workers.program_exchange import ProgramExchange
from edgepart.planner.errors import EdgepartError

log = logging.getLogger(__name__)

ABANDONED_S = 20.0
"""Seconds for which an abandoned plan may still be loaded. A shorter time lets the device load other plans sooner; a longer
one more often saves starting the worker again."""


class ProgramLoading:
    """The programs of one worker, and the loading of them. Programs are loaded by the thread that may give orders to the
    worker; the rest may be called by any thread."""

    def __init__(self, name: str, blame: Blame, engines: EngineWatch) -> None:
        self._name = name
        self._blame = blame
        self._engines = engines
        self._programs: dict[int, ProgramExchange] = {}
        self._lock = threading.Lock()
        """Guards `_programs`."""
        self._now: ProgramExchange | None = None
        """The program that is being loaded."""

    def keep(self, program: ProgramExchange) -> None:
        """Load this program into every further process."""
        with self._lock:
            self._programs[program.number] = program

    def drop(self, program: ProgramExchange) -> None:
        with self._lock:
            self._programs.pop(program.number, None)

    def load(self, process: WorkerProcess, program: ProgramExchange, rest: Callable[[float], None]) -> None:
        """Load a program. Raises InternalError if its sessions cannot be made, and WorkerEnded."""
        before, self._now = self._now, program
        try:
            program.load(process, rest)
        finally:
            self._now = before

    def load_first(
        self, process: WorkerProcess, program: ProgramExchange, rest: Callable[[float], None]
    ) -> None:
        """Load the program; if an engine that was admitted fails or hangs now, load it without that engine."""
        program.settle()
        engines = [one.engine for one in program.program.segments if one.engine]
        trial_s = sum(kind_of(one).trial_s for one in engines)
        waiting = process.kill_later(trial_s, lambda: self._find_hanging(program)) if engines else None
        try:
            self.load(process, program, rest)
        except EdgepartError as error:
            if not self._engines.blame_all(program.program, FAILS, str(error)):
                raise
            self.load(process, program, rest)
        finally:
            if waiting is not None:
                waiting.cancel()

    def _find_hanging(self, program: ProgramExchange) -> str:
        """The reason to end the process if this program's engines have not made its sessions by now; else ""."""
        if self._now is not program:
            return ""
        why = "its sessions were not made in the time that its trials may take"
        self._engines.blame_all(program.program, HANGS, why)
        return "an engine gave no answer while sessions were made"

    def load_all(self, process: WorkerProcess) -> bool:
        """Load all programs, and return whether the process survived that. A program that crashed it is dropped. Raises
        Unavailable if the process was killed, for example because memory ran out: the caller decides when to try again."""
        with self._lock:
            programs = list(self._programs.values())
        for program in programs:
            try:
                self.load(process, program, lambda _: None)
                self._note_loaded(process, program)
            except WorkerEnded as end:
                death = process.death()
                log.error("worker of %s %s while it loaded its programs again", self._name, death)
                error = self._blame.explain_loading(program.program, death)
                if death.is_crash:
                    program.fault = str(error)
                    self.drop(program)
                elif not death.ordered:
                    raise error from end
                return False
            except EdgepartError as error:
                program.fault = str(error)
        return True

    def _note_loaded(self, process: WorkerProcess, program: ProgramExchange) -> None:
        """Note that the program was loaded again. What kept it from being loaded before has passed; and if it was dropped
        meanwhile, the process need not keep it."""
        with self._lock:
            is_wanted = program.number in self._programs
            if is_wanted:
                program.fault = ""
        if not is_wanted:
            process.tell(orders.ReleaseProgram(program.number))

    def abandon(self, process: WorkerProcess) -> None:
        """End the loading of the present program after ABANDONED_S, as nothing waits for it any longer."""
        program = self._now
        if program is not None:
            why = "a plan that nobody waits for was still being loaded"
            process.kill_later(ABANDONED_S, lambda: why if self._now is program else "")
