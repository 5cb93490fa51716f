"""A client that runs where a lab's host is: asks a deployment, checks the answers, and prints when each was sent and came.

    python -m benchmarks.asker JOB.json

A door; benchmarks/emulated.py writes the job and reads what is printed.
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
from edgepart.cli.client import Client
from edgepart.cli.options import AgentTarget

DEADLINE_S = 300.0


@dataclass(frozen=True)
class Job:
    """What to ask of whom."""

    url: str
    state: str
    """The agent's state folder: its credential."""
    deployment: str
    work: str
    """A file that benchmarks/work.py wrote: inputs, and what one session answers."""
    warm_up: int
    count: int
    at_once: int = 1
    """Requests under way at any time."""


@dataclass(frozen=True)
class Asked:
    """What became of it."""

    spans: list[tuple[float, float]]
    """On the machine's monotonic clock, without those of the warm-up."""
    inside_s: list[float]
    """Of each, what the gateway measured."""
    epochs: list[str]
    wrong: list[str]
    """What differed from what one session answers, by more than is allowed."""
    largest_difference: float


async def ask(job: Job) -> Asked:
    inputs, expected = unpack(Path(job.work))
    async with Client(AgentTarget(job.url, Path(job.state))) as client:
        for _ in range(job.warm_up):
            await client.infer(job.deployment, inputs, deadline_s=DEADLINE_S)
        left = iter(range(job.count))
        found: list[tuple[float, float, float, str, Mapping[str, Any]]] = []

        async def worker() -> None:
            for _ in left:
                began = time.monotonic()
                answer = await client.infer(job.deployment, inputs, deadline_s=DEADLINE_S)
                found.append((began, time.monotonic(), answer.seconds, answer.epoch, answer.outputs))

        await asyncio.gather(*(worker() for _ in range(job.at_once)))
    # What was answered is looked at when all is over, so that looking takes nothing from the answers.
    return Asked(
        spans=[(began, ended) for began, ended, *_ in found],
        inside_s=[seconds for _, _, seconds, *_ in found],
        epochs=sorted({epoch for *_, epoch, _ in found}),
        wrong=[text for *_, outputs in found for text in differences(outputs, expected)],
        largest_difference=max(largest_difference(outputs, expected) for *_, outputs in found),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(ask(Job(**json.loads(Path(sys.argv[1]).read_text())))))))
