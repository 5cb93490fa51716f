"""Liveness: detects that an agent has gone while a request waits for its answer. Door: the event loop's clock.

The connections of a killed agent end. An agent that froze, or lost its power or its network, just stays silent, and
waiting for its answer is in vain. So while a request waits, the agent is probed now and then beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """When to probe an agent. Shorter times give up sooner on an agent that is gone; longer ones probe less, and suit
    slower networks."""

    quiet_s: float = 0.5
    """The agent is probed after this time without an answer, and again this long after each probe that it answers."""
    probe_s: float = 1.0
    """How long a probe may take during the first try of a request. It is twice as long during the second try, and so on."""


class Silent(TimeoutError):
    """The agent did not answer a probe."""


async def while_alive(
    work: Coroutine[Any, Any, T],
    probe: Callable[[float], Awaitable[object]],
    lost: tuple[type[Exception], ...],
    timing: ProbeTiming,
    tries: int,
) -> T:
    """The result of `work`. It cancels `work` and raises Silent where `probe(seconds)` raises one of `lost` before that.
    `tries`: how often the request was tried before."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=timing.quiet_s))[0]:
            asked = asyncio.ensure_future(probe(timing.probe_s * (tries + 1)))
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
