"""An event loop in virtual time, so that doors of the product whose only door is asyncio run in a simulated box."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from tests.simulation.trace import Broken

MOST_AT_END = 10_000
"""Callbacks after which a loop that was closed counts as one that never ends."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one life of one box: its callbacks are events of the simulated network.

    An exception that a callback or a task raises is one of the event, and ends the play.
    """

    def __init__(self, now: Callable[[], float], later: Callable[..., None]) -> None:
        """`later(seconds, do, *arguments)` does something after that time, if the box is still in the same life."""
        self._now = now
        self._later = later
        self._closed = False
        self._pending: dict[int, asyncio.TimerHandle] = {}
        self._count = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """The tasks that have not ended, in the order in which they began."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let this be the running loop in the block."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def time(self) -> float:
        return self._now()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_at(self.time(), callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        self._pending[self._count] = handle
        if not self._closed:
            self._later(max(0.0, when - self.time()), self._run, self._count)
        return handle

    def _run(self, number: int) -> None:
        handle = self._pending.pop(number, None)
        if handle is not None and not handle.cancelled():
            with self.running():
                handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio tells of a timer that was cancelled. `_run` leaves it out."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise what a callback raised, unless the box is off. Other calls tell of exceptions that nobody asked for, when
        they are garbage."""
        if "handle" in context and not self._closed:
            raise context["exception"]

    def close(self) -> None:
        """Cancel all tasks, and let them end at once: the box is off, and what they do reaches nobody."""
        if self._closed:
            return
        self._closed = True
        self._pending = {n: handle for n, handle in self._pending.items() if handle.when() <= self.time()}
        for task in list(self._tasks):
            task.cancel()
        for _ in range(MOST_AT_END):
            if not self._pending:
                return
            self._run(next(iter(self._pending)))
        raise Broken("the tasks of a box that is off do not end")
