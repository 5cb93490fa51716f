"""Devices that keep the states of sequences, as the gateway sees them, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.serving.sequence_history import SequenceLimits
from edgepart.agent.serving.sequences import Sequences
from edgepart.agent.wire.inference import Epoch, SequenceStep
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import ClusterError, StateLost
from edgepart.planner.region import Array
from tests.agent.serving.virtual_time import run_virtually

INFO = AnswerInfo(Epoch(1, 1), 0, "by hand")


class Devices:
    """Devices that keep the numbers of a sequence's steps; the answer is a list of all of them so far."""

    def __init__(self, limits: SequenceLimits | None = None) -> None:
        self.kept: dict[str, list[float]] = {}
        self.asked: list[tuple[str, int]] = []
        """The steps that were asked for: the sequence's name and the position."""
        self.ended: list[tuple[str, str]] = []
        self.losing: set[int] = set()
        """How many steps were asked for before the states of all sequences are lost."""
        self.step_s = 0.0
        self.under_way = 0
        self.most_under_way = 0
        self.failure: Exception | None = None
        """What the next step raises after devices have made it."""
        self.serving: str | None = "first model"
        """The digest of the model that serves; None while there is no plan."""
        self._names = 0
        ended = lambda *one: self.ended.append(one)  # noqa: E731
        self.sequences = Sequences(self.run, self._make_name, ended, lambda _: self.serving, limits)

    def _make_name(self) -> str:
        self._names += 1
        return f"gate/0/{self._names}"

    async def run(
        self,
        deployment: str,
        inputs: Mapping[str, Value],
        deadline_s: float,
        outputs: Sequence[str] = (),
        step: SequenceStep | None = None,
        likely: int = 0,
    ) -> tuple[dict[str, Value], AnswerInfo]:
        assert step is not None and step.after == step.position + 1
        if len(self.asked) in self.losing:
            self.kept.clear()
        self.asked.append((step.sequence, step.position))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(min(self.step_s, max(0.0, deadline_s)))
        finally:
            self.under_way -= 1
        if deadline_s <= self.step_s and self.step_s:
            raise ClusterError("the deadline passed")
        numbers = self.kept.get(step.sequence, [])
        if step.position > len(numbers):
            raise StateLost(f"{step.sequence} is not kept here")
        value: Any = inputs["x"]
        numbers = self.kept[step.sequence] = [*numbers[: step.position], float(value[0])]
        if (failure := self.failure) is not None:
            self.failure = None
            raise failure
        return {"y": list(numbers)}, INFO

    async def ask(
        self,
        number: float,
        sequence: str = "p",
        deadline_s: float = 60.0,
        *,
        start: bool = False,
        end: bool = False,
    ) -> list[float]:
        inputs = {"x": x(number)}
        found, _ = await self.sequences.infer("m", sequence, inputs, deadline_s, start=start, end=end)
        answer: Any = found["y"]
        return list(answer)


def x(number: float, size: int = 1) -> Array:
    return np.full(size, number)


def tell(story: Callable[[Devices], Awaitable[None]], limits: SequenceLimits | None = None) -> None:
    async def live() -> None:
        await story(Devices(limits))

    run_virtually(live())
