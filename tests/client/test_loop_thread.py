"""The loop in a thread: what is given up is cancelled."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

import pytest

from edgepart.client.loop_thread import LoopThread


class Pressed(Exception):
    """Stands for Ctrl-C, which pytest keeps for itself."""


def test_a_call_that_is_interrupted_is_cancelled() -> None:
    loop, cancelled, main = LoopThread(), threading.Event(), threading.get_ident()

    def press(*_: object) -> None:
        raise Pressed

    async def wait() -> None:
        # Not before the caller waits: while it hands over its call, there is nothing to cancel yet.
        while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(signal.pthread_kill, main, signal.SIGUSR1)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def nothing() -> None:
        """Ends the loop without more to do."""

    before = signal.signal(signal.SIGUSR1, press)
    try:
        with pytest.raises(Pressed):
            loop.run(wait())
        assert cancelled.wait(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
        loop.stop(nothing())
