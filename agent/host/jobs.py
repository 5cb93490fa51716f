"""Jobs: runs work that lasts as long as the agent. A job that fails is started again, after a pause that grows.

Rules: the clock and the sleep are arguments.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

Begin = Callable[[], Coroutine[Any, Any, None]]

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""The longest pause. A job that ran for longer than this before it failed counts as sound, and its next pause is
FIRST_PAUSE_S again."""


async def repeat(
    what: str,
    begin: Begin,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Run the job until it returns or is cancelled. Each failure that differs from the one before is logged."""
    pause_s, last = FIRST_PAUSE_S, ""
    while True:
        began = clock()
        try:
            return await begin()
        except Exception as error:
            if clock() - began > LONGEST_PAUSE_S:
                pause_s, last = FIRST_PAUSE_S, ""
            if (text := f"{type(error).__name__}: {error}") != last:
                log.error("%s has failed; it is started again in %g s", what, pause_s, exc_info=error)
                last = text
        await sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
