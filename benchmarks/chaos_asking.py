"""A client as a careful user would write it: it knows several agents and gives a request up only when its time is over.

    python -m benchmarks.chaos_asking JOB.json

If an agent does not answer, the client asks another one. It is a process of its own, on a host that is not a member.
Does I/O. benchmarks/chaos.py writes the job and reads the answers, one line of JSON each. After SIGTERM no request
begins, and those already sent are still answered.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from benchmarks.comparing import differences
from benchmarks.work import unpack
from edgepart.client.async_client import AsyncClient
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import EdgepartError, Unavailable

LEARN_S = 10.0
"""Seconds between two updates of the list of agents."""
AGAIN_S = 0.2


@dataclass(frozen=True)
class Job:
    """The requests to send: agent, model, inputs, concurrency and deadline."""

    url: str
    """URL of the agent that is asked first; it reports the other agents."""
    state: str
    """A state folder, which holds the credential."""
    model: str
    work: str
    """A file written by benchmarks/work.py."""
    concurrency: int
    deadline_s: float
    """Seconds for a request with all of its tries; a request that is unanswered by then is lost."""
    out: str


@dataclass(frozen=True)
class Asked:
    """One request and its result. Times are on the machine's monotonic clock."""

    began: float
    ended: float
    epoch: str
    replays: int
    """Times that its gateway ran it again."""
    retries: int
    """Times that the client asked another agent."""
    wrong: bool
    error: str
    """Why the request is lost; empty if it was answered."""


async def ask(client: AsyncClient, job: Job, inputs: Mapping[str, Any], expected: Mapping[str, Any]) -> Asked:
    """Send a request until it is answered, refused for good, or out of time; return its result."""
    began, tries, last = time.monotonic(), 0, ""
    while (left_s := began + job.deadline_s - time.monotonic()) > 0:
        try:
            answer = await client.infer(job.model, inputs, timeout_s=left_s)
        except Unavailable as error:  # means that another try is right
            tries, last = tries + 1, str(error)
            await asyncio.sleep(AGAIN_S)
            continue
        except EdgepartError as error:
            return Asked(began, time.monotonic(), "", 0, tries, False, f"{type(error).__name__}: {error}")
        ended, wrong = time.monotonic(), bool(differences(answer.outputs, expected))
        return Asked(began, ended, answer.epoch, answer.replays, tries + answer.retries, wrong, "")
    return Asked(began, time.monotonic(), "", 0, tries, False, last)


async def _keep_learning(client: AsyncClient) -> None:
    while True:
        try:
            await client.learn()
        except EdgepartError as error:
            print(f"nobody tells who else is there: {error}", file=sys.stderr)
        await asyncio.sleep(LEARN_S)


async def keep_asking(job: Job, out: TextIO) -> None:
    """Keep `job.concurrency` requests in flight until SIGTERM, and write each result as a line to `out`."""
    inputs, expected = unpack(Path(job.work))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def worker() -> None:
        while not stop.is_set():
            print(json.dumps(asdict(await ask(client, job, inputs, expected))), file=out, flush=True)

    async with AsyncClient(AgentTarget(job.url, Path(job.state))) as client:
        learning = asyncio.create_task(_keep_learning(client))
        await asyncio.gather(*(worker() for _ in range(job.concurrency)))
        learning.cancel()


def main(path: str) -> None:
    job = Job(**json.loads(Path(path).read_text()))
    with Path(job.out).open("a") as file:
        asyncio.run(keep_asking(job, file))


if __name__ == "__main__":
    main(sys.argv[1])
