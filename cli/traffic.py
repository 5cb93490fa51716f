"""Traffic: requests that keep coming, and what became of them. Door: a client of the cluster and the
clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from edgepart.cli.client import Client
from edgepart.cli.tensors import largest_difference
from edgepart.planner.errors import EdgepartError
from edgepart.planner.region import Array


@dataclass
class Tally:
    """What became of the requests."""

    sent: int = 0
    lost: list[str] = field(default_factory=list)
    """Why, for each that was not answered."""
    wrong: int = 0
    """Answers that are not the one of a single session."""
    largest_difference: float = 0.0
    replays: int = 0
    spans: list[list[float]] = field(default_factory=list)
    """Times of the answers, for each stretch in which requests kept coming."""

    @property
    def answered(self) -> int:
        return sum(len(span) - 1 for span in self.spans)

    @property
    def longest_gap_s(self) -> float:
        """Between two answers while requests kept coming."""
        return max((b - a for span in self.spans for a, b in pairwise(sorted(span))), default=0.0)


class RequestTraffic:
    """`async with Traffic(client, ...) as traffic:` keeps `concurrency` requests under way inside the
    block."""

    def __init__(
        self,
        client: Client,
        model: str,
        inputs: Mapping[str, Array],
        expected: Mapping[str, Array],
        tally: Tally,
        *,
        concurrency: int = 4,
        tolerance: float = 1e-4,
    ) -> None:
        """An answer is right within `tolerance` of the largest magnitude that is expected."""
        self._client = client
        self._model = model
        self._inputs = inputs
        self._expected = expected
        self._concurrency = concurrency
        self._tolerance = tolerance
        self._going = True
        self.tally = tally
        self._workers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> RequestTraffic:
        self.tally.spans.append([time.monotonic()])
        self._workers = [asyncio.create_task(self._keep_asking()) for _ in range(self._concurrency)]
        return self

    async def __aexit__(self, *_: Any) -> None:
        """Lets what was sent be answered."""
        self._going = False
        await asyncio.gather(*self._workers)

    async def answers(self, count: int) -> None:
        """Until `count` more answers came."""
        until = len(self.tally.spans[-1]) + count
        while len(self.tally.spans[-1]) < until and not all(worker.done() for worker in self._workers):
            await asyncio.sleep(0.02)

    async def _keep_asking(self) -> None:
        while self._going:
            await self.ask()

    async def ask(self) -> None:
        """One request."""
        self.tally.sent += 1
        try:
            answer = await self._client.infer(self._model, self._inputs)
        except EdgepartError as error:
            self.tally.lost.append(str(error))
            return
        self.tally.spans[-1].append(time.monotonic())
        self.tally.replays += answer.replays
        wrong = False
        for name, expected in self._expected.items():
            got = np.asarray(answer.outputs.get(name, np.nan))
            difference = largest_difference({name: expected}, {name: got})
            self.tally.largest_difference = max(self.tally.largest_difference, difference)
            wrong = wrong or difference > self._tolerance * float(np.abs(expected).max())
        self.tally.wrong += wrong
