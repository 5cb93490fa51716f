"""Blame: what a worker's process is busy with, and so whom its end is blamed on. Rules.

A run whose worker ended is made once more (WorkerDied). A model whose runs ended too many workers, or that no worker
survives to load, is set aside. An engine that ended a worker is refused, and the model is not to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from edgepart.agent.engines.verdicts import CRASHES
from edgepart.agent.execution.prepared import describe_segment
from edgepart.agent.workers.death import Death
from edgepart.agent.workers.engine_watch import EngineWatch
from edgepart.planner.errors import CrashError, EdgepartError, RequestError, Unavailable, WorkerDied
from edgepart.planner.plans.plan import Program, Segment

CRASHES_TOLERATED = 3
"""A model that crashed this often while it served is set aside. A larger number lets a model continue that rarely crashes,
at the cost of as many pauses."""


@dataclass(frozen=True, slots=True)
class Busy:
    """What a worker's process computes now."""

    number: int
    """The run's number; -1 if a segment is timed."""
    program: int
    """The program's number."""
    segment: Segment
    began_s: float


class Blame:
    """What the process of one worker is busy with, and what its end therefore means."""

    def __init__(self, engines: EngineWatch, crashed: Callable[[str], None]) -> None:
        """`crashed` is called, once, with the reason why the model is to be set aside."""
        self._engines = engines
        self._crashed = crashed
        self._crashes = 0
        self.run: Busy | None = None
        """The run that the process computes now."""
        self.timing: Busy | None = None
        """The segment that is timed now."""
        self.is_ambiguous = False
        """Whether something other than a run may be the cause if the process ends now."""

    @contextmanager
    def ambiguous(self) -> Iterator[None]:
        """In the block the process does something other than a run, which may be the cause if it ends."""
        before, self.is_ambiguous = self.is_ambiguous, True
        try:
            yield
        finally:
            self.is_ambiguous = before

    def blame_engine(self, death: Death) -> None:
        """Note that an engine crashed the process, before another process loads its programs."""
        busy = self.run or self.timing
        if busy is not None and death.is_crash and busy.segment.engine:
            self._engines.blame(busy.segment, CRASHES, f"the worker {death}")

    def explain_run(self, segment: Segment, death: Death, ambiguous: bool) -> EdgepartError:
        """The error for a run of the segment during which the process ended. `ambiguous` is what `is_ambiguous` was
        then."""
        what = describe_segment(segment)
        if death.ordered:
            return RequestError(f"{what} was stopped: {death.why}")
        if not death.is_crash or ambiguous:
            return Unavailable(f"the worker {death} while it computed {what}")
        if (
            segment.engine
        ):  # It is refused from now on: the CPU makes the run again, and the model is not to blame.
            return WorkerDied(f"the worker {death} while it computed {what} on {segment.engine}")
        self._crashes += 1
        if self._crashes == CRASHES_TOLERATED:
            self._crashed(
                f"crashes ONNX Runtime ({CRASHES_TOLERATED} times while it served; the last worker {death}): {what}"
            )
        return WorkerDied(f"the worker {death} while it computed {what}")

    def explain_loading(self, program: Program, death: Death) -> EdgepartError:
        """The error for a program during whose loading a process ended that had nothing else to do."""
        if not death.is_crash:
            return Unavailable(f"the worker {death} while it loaded a plan")
        segments = ", ".join(describe_segment(one) for one in program.segments[:3])
        why = f"crashes ONNX Runtime while it is loaded (the worker {death}): {segments}"
        self._crashed(why)
        return CrashError(why)
