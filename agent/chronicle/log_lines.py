"""The last lines of this agent's log, in memory, so that they can be read over HTTP. Door: Python's logging."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from edgepart.agent.chronicle.numbered_log import NumberedLog

MOST_LINES = 1000
MOST_LETTERS = 2000
"""The longest text of a line. All lines together take 2 MB or so at most."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record of the log."""

    at_s: float
    """When, in seconds since 1970."""
    level: str
    """"INFO", "WARNING" and so on."""
    source: str
    """The module that wrote it."""
    text: str
    """The message, with the traceback if there is one."""


class LogKeeper(logging.Handler):
    """Keeps the last lines. Filters that other handlers have apply to it only if they are added to it too."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: NumberedLog[LogLine] = NumberedLog(MOST_LINES)
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if len(text) > MOST_LETTERS:
            text = f"{text[: MOST_LETTERS - 1]}…"
        self.lines.add(LogLine(record.created, record.levelname, record.name, text))
