"""Whether an agent that has not answered yet is still there. Door: the event loop's clock.

An agent that was killed ends its connections; one that froze, lost its power or its network says nothing, and waiting for
its answer is in vain. So while an answer is awaited, the agent is asked now and then whether it lives, beside the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PulseTiming:
    """Shorter moves on sooner from an agent that is gone; longer asks less, and bears slower networks."""

    quiet_s: float = 0.5
    """After so long without an answer it is asked whether it lives, and again after each time that it does."""
    beat_s: float = 1.0
    """For so long it may be silent then, after the first try of a request twice as long, and so on."""


class Silent(TimeoutError):
    """It gives no sign of life."""


async def while_alive(
    work: Coroutine[Any, Any, T],
    beat: Callable[[float], Awaitable[object]],
    lost: tuple[type[Exception], ...],
    patience: PulseTiming,
    tries: int,
) -> T:
    """What `work` gives. Silent, with `work` cancelled, where `beat(seconds)`, which asks whether the agent lives, raises
    one of `lost` before that. `tries`: how often the request was tried before."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=patience.quiet_s))[0]:
            asked = asyncio.ensure_future(beat(patience.beat_s * (tries + 1)))
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
