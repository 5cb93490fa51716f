"""Load turns: whose turn it is to make sessions. Threads wait here, and nothing else is known of their work.

Making sessions takes memory, so that it is done for one program at a time. More urgent programs come before others, also
before one that is being loaded: between two of its sessions, the thread that loads it does their work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition
from typing import Any, TypeVar

from edgepart.agent.execution.prepared import LoadUrgency

Result = TypeVar("Result")


class LoadTurns:
    """Turns for work that is done one at a time. Thread-safe."""

    def __init__(self) -> None:
        self._changed = Condition()
        """Guards the attributes below, and is notified when they change."""
        self._busy = False
        """Whether a thread has its turn."""
        self._queues: dict[LoadUrgency, deque[_Work]] = {one: deque() for one in sorted(LoadUrgency)[::-1]}
        """What waits, the most urgent first."""

    def take(self, work: Callable[[], Result], urgency: LoadUrgency) -> Result:
        """Do `work` when its turn comes, the most urgent first; another thread may do it. Returns what the work returns,
        and raises what it raises."""
        mine = _Work(work)
        queue = self._queues[urgency]
        with self._changed:
            queue.append(mine)
            self._changed.wait_for(lambda: mine.taken or (not self._busy and self._first() is mine))
            if not mine.taken:
                queue.remove(mine)
                self._busy = True
        if mine.taken:
            return mine.answer.result()  # type: ignore[no-any-return]
        try:
            return work()
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def let_pass(self, urgency: LoadUrgency) -> None:
        """Do all work that is more urgent. Only for work of this urgency that is under way, at a point where it can be
        interrupted."""
        while True:
            with self._changed:
                queue = next((q for one, q in self._queues.items() if one > urgency and q), None)
                if queue is None:
                    return
                work = queue.popleft()
                work.taken = True
                self._changed.notify_all()
            work.do()

    @property
    def waiting(self) -> int:
        """The number of pieces of work that wait for their turn."""
        with self._changed:
            return sum(map(len, self._queues.values()))

    def _first(self) -> _Work | None:
        return next((queue[0] for queue in self._queues.values() if queue), None)


class _Work:
    """Work that waits for its turn."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.taken = False
        """Whether another thread does the work."""
        self.answer: Future[Any] = Future()

    def do(self) -> None:
        try:
            self.answer.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - the thread that asked raises it
            self.answer.set_exception(error)
