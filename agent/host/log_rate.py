"""Log rate: limits how many lines of one kind are written to the log. Rules: no door; the clock is an argument.

Any module or library may log what outsiders send. The filter is on the log's handlers, so it sees all of these lines. It
leaves out lines of a kind that comes too often, and the next line that passes says how many were left out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edgepart.agent.host.token_bucket import MOST_CLIENTS, Buckets

LINES_S = 1.0
"""The lines of one kind that may be written per second in the long run. More lines show more of a flood;
fewer keep the log smaller."""
BURST = 50
"""The lines of one kind that may be written at once; an agent's own work stays below this even on a busy
day."""
_KIND_CHARACTERS = 200
_OTHERS = ""


class LogRate(logging.Filter):
    """Passes `rate` lines a second of each kind; a kind is a logger, a level and a message before its arguments."""

    def __init__(
        self,
        clock: Callable[[], float],
        rate: float = LINES_S,
        burst: float = BURST,
        most: int = MOST_CLIENTS,
    ) -> None:
        """`clock` gives seconds and never goes back. Once there are `most` kinds, all further ones count as one kind."""
        super().__init__()
        self._clock = clock
        self._most = most
        self._buckets = Buckets(rate, burst, most)
        self._left_out: dict[str, int] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = f"{record.name} {record.levelno} {str(record.msg)[:_KIND_CHARACTERS]}"
        with self._lock:
            passes = self._buckets.take(kind, self._clock()) == 0.0
            if kind not in self._left_out and len(self._left_out) >= self._most:
                kind = _OTHERS
            if not passes:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return False
            left_out = self._left_out.pop(kind, 0)
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more lines like this one were left out before)"
            record.args = None
        return True
