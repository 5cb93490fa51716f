"""Prepared: what the executor and timing need of a program whose sessions are made, wherever these are.
Rules: no door."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.nchwc_array import KeptBlocked
from edgepart.agent.wire.tensors import Value
from edgepart.planner.plans.plan import Program, Segment, Transfer


class RunnableProgram(Protocol):
    """A program that can be run: in this process (sessions.py), or in a worker (supervisor.py)."""

    @property
    def program(self) -> Program: ...

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """By tensor of the plan, for those that go in or out of a segment here and are tensors."""

    @property
    def kept(self) -> KeptBlocked:
        """What its segments give and take blocked."""

    def run(self, segment: int, inputs: Sequence[Value], wanted: Callable[[], bool] = ...) -> list[Value]:
        """A segment's outputs. `wanted` is asked, from any thread, when the run is about to begin, as it may have had to
        wait. RequestError, InternalError; WorkerDied where the process that computed it ended."""

    def stop(self) -> None:
        """End the run that is under way, if any; it then raises RequestError. Never waits."""

    def scratch(self) -> Scratch:
        """Memory for what a run's inputs are made in."""

    def best_s(self, segment: int, budget_s: float) -> float | None:
        """Seconds that a segment takes on made-up inputs; None where they cannot be made up, or there is no time."""


class Loader(Protocol):
    """Makes programs ready to run."""

    def prepare(
        self, deployment: str, model: str, program: Program, transfers: Sequence[Transfer]
    ) -> RunnableProgram:
        """Takes as long as loading takes: for a thread. `model` is the digest of the model that the plan is for.
        InternalError names the segment that ONNX Runtime refuses, ModelCrash says that it ends the process."""

    def release(self, prepared: RunnableProgram) -> None:
        """Forget a program. Never waits."""

    def abandon(self, deployment: str, model: str) -> None:
        """Nobody waits any more for what is being prepared of that deployment: it is ended after a while. Never waits."""


def describe(segment: Segment) -> str:
    """A segment for people: its first operators."""
    first = ", ".join(segment.operators[:3])
    more = len(segment.operators) - 3
    return f"segment {segment.digest[:8]} ({first}{f' and {more} more' if more > 0 else ''})"
