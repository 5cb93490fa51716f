"""Log rate: how many lines one kind of event may write to the log. Rules: no door; the clock is an argument.

What outsiders send may be logged by any module and by libraries in use. The filter stands on the log's handlers, so all of
their lines pass it: a line of a kind that comes too often is left out, and the next one that passes says how many were.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edgepart.agent.host.token_bucket import MOST_CLIENTS, Buckets

LINES_S = 1.0
"""Lines a second of one kind in the long run. More shows more of a flood; fewer keeps the log smaller."""
BURST = 50
"""Lines of one kind that may come at once; what an agent does itself on a busy day stays below."""
_KIND_CHARACTERS = 200
_OTHERS = ""


class LogRate(logging.Filter):
    """Lets through so many lines a second of each kind; a kind is a logger, a level and a message before its arguments."""

    def __init__(
        self,
        clock: Callable[[], float],
        rate: float = LINES_S,
        burst: float = BURST,
        most: int = MOST_CLIENTS,
    ) -> None:
        """`clock` gives seconds and never goes back. Beyond `most` kinds at once newcomers are one kind."""
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
