"""Jobs: what an agent does for as long as it runs. A job that fails is begun again, after a pause that grows.

The clock and the sleep are arguments.
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
"""A job that ran for longer than this before it failed counts as sound: its next pause is the first one again."""


async def repeat(
    what: str,
    begin: Begin,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Do the job until it ends by itself or is cancelled. The log has each failure that differs from the one before."""
    pause_s, last = FIRST_PAUSE_S, ""
    while True:
        began = clock()
        try:
            return await begin()
        except Exception as error:
            if clock() - began > LONGEST_PAUSE_S:
                pause_s, last = FIRST_PAUSE_S, ""
            if (text := f"{type(error).__name__}: {error}") != last:
                log.error("%s has failed; it is begun again in %g s", what, pause_s, exc_info=error)
                last = text
        await sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
