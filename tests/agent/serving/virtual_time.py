"""An event loop whose clock goes forward only when everybody waits: stories of minutes take milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Waiting(selectors.SelectSelector):
    """Waits for nothing: the time that it would have waited has passed."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waiting = _Waiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._waiting.now_s


def run_virtually(story: Coroutine[Any, Any, T]) -> T:
    """Run a story in a loop of its own; it begins at time 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)
