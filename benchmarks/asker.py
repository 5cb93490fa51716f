"""A client that runs on a laboratory host: asks a deployment, checks the answers, prints when each request
began and ended.

    python -m benchmarks.asker JOB.json

Does I/O. benchmarks/emulated.py writes the job and reads the printed result.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparing import differences, largest_difference
from benchmarks.work import unpack
from edgepart.client.async_client import AsyncClient
from edgepart.client.target import AgentTarget

DEADLINE_S = 300.0


@dataclass(frozen=True)
class Job:
    """The requests to send: agent, deployment, inputs and counts."""

    url: str
    state: str
    """The agent's state folder, which holds its credential."""
    deployment: str
    work: str
    """A file written by benchmarks/work.py: the inputs, and the answers of one session to them."""
    warm_up: int
    count: int
    at_once: int = 1
    """Requests in flight at any time."""
    every_s: float = 0.0
    """If not 0, a request begins every so many seconds, however many are in flight."""


@dataclass(frozen=True)
class Asked:
    """The result of a job."""

    spans: list[tuple[float, float]]
    """When each request began and ended, on the machine's monotonic clock; without the warm-up."""
    inside_s: list[float]
    """Seconds of each request as the gateway measured them."""
    epochs: list[str]
    wrong: list[str]
    """Differences from the answers of one session that exceed the tolerance."""
    largest_difference: float


async def ask(job: Job) -> Asked:
    inputs, expected = unpack(Path(job.work))
    async with AsyncClient(AgentTarget(job.url, Path(job.state))) as client:
        for _ in range(job.warm_up):
            await client.infer(job.deployment, inputs, timeout_s=DEADLINE_S)
        left = iter(range(job.count))
        found: list[tuple[float, float, float, str, Mapping[str, Any]]] = []

        async def one() -> None:
            began = time.monotonic()
            answer = await client.infer(job.deployment, inputs, timeout_s=DEADLINE_S)
            found.append((began, time.monotonic(), answer.seconds, answer.epoch, answer.outputs))

        async def worker() -> None:
            for _ in left:
                await one()

        async def later(number: int) -> None:
            await asyncio.sleep(number * job.every_s)
            await one()

        if job.every_s:
            await asyncio.gather(*map(later, left))
        else:
            await asyncio.gather(*(worker() for _ in range(job.at_once)))
    # Answers are compared only after the last one, so that comparing does not slow the requests.
    return Asked(
        spans=[(began, ended) for began, ended, *_ in found],
        inside_s=[seconds for _, _, seconds, *_ in found],
        epochs=sorted({epoch for *_, epoch, _ in found}),
        wrong=[text for *_, outputs in found for text in differences(outputs, expected)],
        largest_difference=max(largest_difference(outputs, expected) for *_, outputs in found),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(ask(Job(**json.loads(Path(sys.argv[1]).read_text())))))))
