"""A numbered log: the last entries of something, each with a number, so that readers can go on where they were. Rules,
with a lock: any thread may add and read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from secrets import token_hex
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogPage(Generic[T]):
    """The entries after a place in a log."""

    entries: tuple[tuple[int, T], ...]
    """Each entry with its number, the oldest first."""
    forgotten: int
    """Number of entries after that place for which the log had no room any more."""


class NumberedLog(Generic[T]):
    """The last `most` entries. Their numbers count from 1 for the whole life of the log."""

    def __init__(self, most: int) -> None:
        self.life = token_hex(4)
        """Tells this log from that of an earlier run of the agent."""
        self._entries: deque[T] = deque(maxlen=most)
        self._last = 0
        self._lock = Lock()
        self._listeners: dict[object, Callable[[], object]] = {}

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 if there was none yet."""
        return self._last

    def add(self, entry: T) -> None:
        with self._lock:
            self._entries.append(entry)
            self._last += 1
            listeners = tuple(self._listeners.values())
        for call in listeners:
            call()

    def after(self, number: int) -> LogPage[T]:
        """The entries whose numbers are greater than `number`. A number that the log has not come to counts as 0: it is of
        another log, so its reader has seen nothing of this one."""
        with self._lock:
            seen = number if 0 <= number <= self._last else 0
            first = self._last - len(self._entries) + 1
            start = max(seen + 1, first)
            found = tuple(enumerate(islice(self._entries, start - first, None), start))
        return LogPage(found, start - seen - 1)

    @contextmanager
    def listening(self, call: Callable[[], object]) -> Iterator[None]:
        """Have `call` called after each new entry, in the thread that added it, until the block ends."""
        key = object()
        with self._lock:
            self._listeners[key] = call
        try:
            yield
        finally:
            with self._lock:
                del self._listeners[key]
