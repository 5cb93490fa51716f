"""Admitted programs: has each segment that a plan gives to an engine tried before the plan is loaded, and loads on the CPU
what an engine is refused for. Rules around a loader: engine_trials.py is the door.

A plan never fails because of an engine. What an engine is refused for is computed by the CPU of the same device, which is
right and only slower, and the refusal is told, so that the leader plans around it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from edgepart.agent.engines.verdicts import EngineVerdict, VerdictBook, compare_times
from edgepart.agent.execution.prepared import Loader, LoadUrgency, RunnableProgram, describe_segment
from edgepart.planner.plans.plan import Program, Segment, Transfer

log = logging.getLogger(__name__)


class SegmentTrials(Protocol):
    """The interface of engine_trials.py."""

    def verdict(self, segment: Segment) -> EngineVerdict: ...


class AdmittedPrograms:
    """A loader that tries engines first. Thread-safe as far as the loader, the trials and `noted` are."""

    def __init__(
        self,
        loader: Loader,
        trials: SegmentTrials,
        book: VerdictBook,
        noted: Callable[[EngineVerdict], None],
    ) -> None:
        """`noted` is called with each new verdict, after the book has it; it keeps and tells it."""
        self._loader = loader
        self._trials = trials
        self._book = book
        self._noted = noted

    def prepare(
        self,
        deployment: str,
        model: str,
        program: Program,
        transfers: Sequence[Transfer],
        *,
        urgency: LoadUrgency = LoadUrgency.COMING,
    ) -> RunnableProgram:
        """The same as `Loader.prepare`. Raises Unavailable as well, if an engine cannot be tried now."""
        unknown = {
            (one.engine, one.digest): one
            for one in program.segments
            if one.engine and self._book.find(one.engine, one.digest) is None
        }
        for segment in unknown.values():
            self.note(segment, compare_times(replace(self._trials.verdict(segment), model=model)))
        settled = self._book.settle(program)
        return self._loader.prepare(deployment, model, settled, transfers, urgency=urgency)

    def getting_ready(self, deployment: str, model: str) -> AbstractContextManager[None]:
        """The same as `Loader.getting_ready`."""
        return self._loader.getting_ready(deployment, model)

    def note(self, segment: Segment, verdict: EngineVerdict) -> None:
        """Take over a verdict about a segment, from a trial or from a run that served."""
        if not self._book.note(verdict):
            return
        level = logging.WARNING if verdict.is_fault else logging.INFO
        consequence = "; the CPU computes it" if verdict.refused else ""
        log.log(
            level,
            "%s %s on %s: %s%s",
            verdict.engine,
            verdict.outcome,
            describe_segment(segment),
            verdict.why,
            consequence,
        )
        self._noted(verdict)

    def release(self, prepared: RunnableProgram) -> None:
        """The same as `Loader.release`."""
        self._loader.release(prepared)

    def abandon(self, deployment: str, model: str) -> None:
        """The same as `Loader.abandon`."""
        self._loader.abandon(deployment, model)
