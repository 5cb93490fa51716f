"""Loop thread: one event loop in a thread of its own, for callers that run none, or that must not block theirs. Door: a
thread.

A notebook runs an event loop already, in which a call that waits for its own loop would wait for ever.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from edgepart.planner.errors import UsageError

T = TypeVar("T")


class LoopCall(Generic[T]):
    """One call for the loop. It exists before it is handed over, so that it can be given up at any moment."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._answer: Future[T] = Future()

    def hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.call_soon_threadsafe(self._begin)

    def result(self) -> T:
        """Waits for the result. Raises what the work raises, and CancelledError if it was cancelled."""
        return self._answer.result()

    def give_up(self) -> None:
        """Cancels the work, even if the caller was interrupted while it handed it over."""
        if self._loop is None or self._loop.is_closed():
            self._work.close()
        else:
            self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._work)
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # It was never handed over: the loop would have begun it by now.
            self._work.close()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._answer.cancel()
        elif (error := task.exception()) is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())


class LoopThread:
    """An event loop in a daemon thread. Any number of threads may use it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="edgepart client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled if this thread is interrupted (Ctrl-C). Raises what `work` raises, and
        UsageError after the end."""
        call = LoopCall(work)
        try:
            self._submit(call)
            return call.result()
        except CancelledError:
            raise UsageError("the client was closed while a call was under way; connect again") from None
        except BaseException:
            call.give_up()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items, none of which is None, one after the other: each is waited for when it is asked for."""

        async def following() -> T | None:
            return await anext(items, None)

        try:
            while (item := self.run(following())) is not None:
                yield item
        finally:
            if not self._stopped:
                self.run(items.aclose())

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancels what is under way, runs `last`, and ends the thread. A second call does nothing."""
        with self._lock:
            first = not self._stopped
            self._stopped = True
        if not first or self._process != os.getpid():
            last.close()
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        ending.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        if (
            threading.current_thread() is not self._thread
        ):  # The garbage collector may call this in any thread.
            ending.result()
            self._thread.join()
            self._loop.close()

    def _submit(self, call: LoopCall[Any]) -> None:
        with self._lock:
            if self._stopped or self._process != os.getpid():
                why = "is closed" if self._stopped else "belongs to the process that was forked"
                raise UsageError(f"the client {why}; connect again")
            call.hand_over(self._loop)

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await last
