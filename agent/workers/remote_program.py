"""Remote program: a program in a worker, as the executor and the timing of segments use it. Door: by way of its worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.nchwc_array import KeptBlocked
from edgepart.agent.wire.tensors import Value
from edgepart.agent.workers.program_exchange import ProgramExchange
from edgepart.agent.workers.segment_runs import SegmentRuns
from edgepart.planner.plans.plan import Program
from edgepart.planner.region import Array


@dataclass(frozen=True, eq=False)
class RemoteProgram:
    """A `RunnableProgram` whose sessions are in a worker."""

    exchange: ProgramExchange
    runs: SegmentRuns

    @property
    def program(self) -> Program:
        """The program; its segments name the engines that compute them now, which may be fewer than the plan's."""
        return self.exchange.program

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return self.exchange.dtypes

    @property
    def kept(self) -> KeptBlocked:
        return self.exchange.kept

    def run(
        self,
        segment: int,
        inputs: Sequence[Value],
        wanted: Callable[[], bool] = lambda: True,
        overwrites: Sequence[tuple[int, int]] = (),
    ) -> list[Value]:
        """The same as `RunnableProgram.run`."""
        return self.runs.run(self.exchange, segment, inputs, wanted, overwrites)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The same as `RunnableProgram.empty`."""
        return self.exchange.memory.empty(shape, dtype)

    def stop(self) -> None:
        self.runs.stop(self.exchange)

    def scratch(self) -> Scratch:
        return Scratch(lambda nbytes: self.empty((nbytes,), np.dtype(np.uint8)))

    def best_s(self, segment: int, budget_s: float) -> float | None:
        return self.runs.time(self.exchange, segment, budget_s) if budget_s > 0 else None
