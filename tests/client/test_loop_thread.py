"""The loop in a thread: what is given up is cancelled."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
import threading
from collections.abc import Callable

import pytest

from edgepart.client.loop_thread import LoopThread
from edgepart.planner.errors import UsageError


class Pressed(Exception):
    """Stands for Ctrl-C, which pytest keeps for itself."""


async def nothing() -> None:
    """Ends the loop without more to do."""


@pytest.mark.parametrize("handed_over", [True, False])
def test_a_call_that_is_interrupted_while_it_is_handed_over_is_cancelled(
    handed_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On either side of the moment at which the loop gets it."""
    thread, begun, ended = LoopThread(), threading.Event(), threading.Event()
    real = thread._loop.call_soon_threadsafe

    def press_there(callback: Callable[..., object], *arguments: object) -> object:
        if not handed_over:
            monkeypatch.undo()
            raise Pressed
        real(callback, *arguments)
        assert begun.wait(20)
        monkeypatch.undo()
        raise Pressed

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    work = wait()
    monkeypatch.setattr(thread._loop, "call_soon_threadsafe", press_there)
    with pytest.raises(Pressed):
        thread.run(work)
    if handed_over:
        assert ended.wait(20)
    thread.run(nothing())
    assert begun.is_set() == handed_over
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    thread.stop(nothing())
    with pytest.raises(UsageError, match="is closed"):
        thread.run(nothing())


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

    before = signal.signal(signal.SIGUSR1, press)
    try:
        with pytest.raises(Pressed):
            loop.run(wait())
        assert cancelled.wait(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
        loop.stop(nothing())
