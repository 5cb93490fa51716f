"""A client process that asks without pause, on any host, and records when each request began and ended.

    python -m benchmarks.keep_asking URL STATE MODEL WORK CONCURRENCY OUT

WORK is a file written by benchmarks/work.py. Until SIGTERM, a line of JSON for each request goes to OUT: when it began
and ended on the machine's monotonic clock, the epoch of the answer, the replays, whether the answer is wrong, the error.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from benchmarks.comparing import differences
from benchmarks.work import unpack
from edgepart.client.async_client import AsyncClient
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import EdgepartError

DEADLINE_S = 60.0


async def ask(client: AsyncClient, model: str, inputs: Any, expected: Any) -> list[Any]:
    """Send one request and return its line."""
    began = time.monotonic()
    try:
        answer = await client.infer(model, inputs, timeout_s=DEADLINE_S)
    except EdgepartError as error:
        return [began, time.monotonic(), "", 0, False, str(error)]
    ended = time.monotonic()
    wrong = bool(differences(answer.outputs, expected))
    return [began, ended, answer.epoch, answer.replays + answer.retries, wrong, ""]


async def keep_asking(target: AgentTarget, model: str, work: Path, concurrency: int, out: TextIO) -> None:
    inputs, expected = unpack(work)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def worker() -> None:
        while not stop.is_set():
            print(json.dumps(await ask(client, model, inputs, expected)), file=out, flush=True)

    async with AsyncClient(target) as client:
        await asyncio.gather(*(worker() for _ in range(concurrency)))


def main(url: str, state: str, model: str, work: str, concurrency: str, out: str) -> None:
    with Path(out).open("a") as file:
        asyncio.run(keep_asking(AgentTarget(url, Path(state)), model, Path(work), int(concurrency), file))


if __name__ == "__main__":
    main(*sys.argv[1:])
