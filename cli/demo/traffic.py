"""Traffic: sends requests without pause and counts the outcomes. Door: it is a client of the cluster, and has a clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from edgepart.cli.tensors import largest_difference
from edgepart.client.async_client import AsyncClient
from edgepart.planner.errors import EdgepartError
from edgepart.planner.region import Array


@dataclass
class Tally:
    """The outcomes of the requests."""

    sent: int = 0
    lost: list[str] = field(default_factory=list)
    """The reason for each request without an answer."""
    wrong: int = 0
    """The number of answers that differ from that of a single session."""
    largest_difference: float = 0.0
    replays: int = 0
    spans: list[list[float]] = field(default_factory=list)
    """The times of the answers, for each period in which requests were sent."""

    @property
    def answered(self) -> int:
        return sum(len(span) - 1 for span in self.spans)

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two answers while requests were sent."""
        return max((b - a for span in self.spans for a, b in pairwise(sorted(span))), default=0.0)


class RequestTraffic:
    """`async with RequestTraffic(client, ...) as traffic:` keeps `concurrency` requests under way inside the block."""

    def __init__(
        self,
        client: AsyncClient,
        model: str,
        inputs: Mapping[str, Array],
        expected: Mapping[str, Array],
        tally: Tally,
        *,
        concurrency: int = 4,
        tolerance: float = 1e-4,
    ) -> None:
        """An answer is right if it differs by at most `tolerance` of the largest expected magnitude."""
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
        """Waits for the answers to the requests that were sent."""
        self._going = False
        await asyncio.gather(*self._workers)

    async def answers(self, count: int) -> None:
        """Waits for `count` more answers."""
        until = len(self.tally.spans[-1]) + count
        while len(self.tally.spans[-1]) < until and not all(worker.done() for worker in self._workers):
            await asyncio.sleep(0.02)

    async def _keep_asking(self) -> None:
        while self._going:
            await self.ask()

    async def ask(self) -> None:
        """Sends one request and counts its outcome."""
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
