"""Prepared programs: the interface by which the executor and the timing of segments use a program whose sessions are
made, in this process or in a worker. Rules: no door."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.nchwc_array import KeptBlocked
from edgepart.agent.wire.tensors import Value
from edgepart.planner.plans.plan import Program, Segment, Transfer
from edgepart.planner.region import Array


class LoadUrgency(IntEnum):
    """How urgent it is to load a program: the larger comes first."""

    BACKGROUND = 0
    """It may never be used: a plan for the loss of a device, or steps in several sequences at once."""
    COMING = 1
    """Its plan is to serve."""
    AWAITED = 2
    """Requests wait for it."""


class RunnableProgram(Protocol):
    """A program that can be run, in this process (sessions.py) or in a worker (remote_program.py)."""

    @property
    def program(self) -> Program: ...

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of each of the plan's tensors that a segment here reads or writes. Sequences, maps and optionals
        are missing."""

    @property
    def kept(self) -> KeptBlocked:
        """The tensors that its segments read and write blocked."""

    def run(
        self,
        segment: int,
        inputs: Sequence[Value],
        wanted: Callable[[], bool] = ...,
        overwrites: Sequence[tuple[int, int]] = ...,
    ) -> list[Value]:
        """Compute segment number `segment` and return its outputs. A run may have to wait, so `wanted` is called, from
        any thread, right before it begins, and says whether the request still exists. `overwrites` has the numbers of
        inputs over which an output may be written, each with the number of the output, which is then the same array.

        Raises RequestError, InternalError, and WorkerDied if the process that computed the segment ended."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array, which a run can read without copying it first. Raises MemoryError if there is no room
        for it."""

    def stop(self) -> None:
        """End the run that is under way, if any; it then raises RequestError. Never waits."""

    def scratch(self) -> Scratch:
        """Memory in which a run's inputs are put together."""

    def best_s(self, segment: int, budget_s: float) -> float | None:
        """Seconds that a segment takes on made-up inputs; None if they cannot be made up or no time is left."""


class Loader(Protocol):
    """Makes programs ready to run."""

    def prepare(
        self,
        deployment: str,
        model: str,
        program: Program,
        transfers: Sequence[Transfer],
        *,
        urgency: LoadUrgency = LoadUrgency.COMING,
    ) -> RunnableProgram:
        """Load the program's sessions. This takes long: call it from a thread of its own. `model` is the digest of the
        plan's model. Raises InternalError, which names the segment that ONNX Runtime refuses, and CrashError if loading
        ends the process."""

    def getting_ready(self, deployment: str, model: str) -> AbstractContextManager[None]:
        """Start, beside the block, what takes time before `prepare` can begin. In the block is what a program of this
        deployment waits for, such as its weights, and then the call of `prepare`. Never waits."""

    def release(self, prepared: RunnableProgram) -> None:
        """Forget a program. Never waits."""

    def abandon(self, deployment: str, model: str) -> None:
        """End the preparation of this deployment's programs after a while, as nothing waits for them any longer. Never
        waits."""


def describe_segment(segment: Segment) -> str:
    """A segment as people read it: the start of its digest and its first operators."""
    first = ", ".join(segment.operators[:3])
    more = len(segment.operators) - 3
    return f"segment {segment.digest[:8]} ({first}{f' and {more} more' if more > 0 else ''})"
