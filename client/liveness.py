"""Liveness: detects that an agent has gone while a request waits for its answer. Door: the event loop's clock.

The connections of a killed agent end. An agent that froze, or lost its power or its network, just stays silent, and
waiting for its answer is in vain. Therefore the agent is probed now and then while a request waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """The times of probes, in seconds. With shorter times, an agent that is gone is given up sooner; with longer ones,
    there are fewer probes, and slower networks are tolerated."""

    quiet_s: float = 0.5
    """The agent is probed after this time without an answer, and again this long after each probe that it answers."""
    probe_s: float = 1.0
    """The time that a probe may take while a request's members are asked for the first time; twice that in the second
    round, and so on."""


class Silent(TimeoutError):
    """The agent did not answer a probe."""


async def while_alive(
    work: Coroutine[Any, Any, T],
    probe: Callable[[float], Awaitable[object]],
    lost: tuple[type[Exception], ...],
    timing: ProbeTiming,
    patience: int = 1,
) -> T:
    """The result of `work`. If `probe(seconds)` raises one of `lost` before `work` ends, `work` is cancelled and Silent is
    raised. A probe may take `patience` times its usual time."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=timing.quiet_s))[0]:
            asked = asyncio.ensure_future(probe(timing.probe_s * patience))
            try:
                await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
                if asked.done() and not task.done() and isinstance(error := asked.exception(), lost):
                    raise Silent("it gives no sign of life") from error
            finally:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
