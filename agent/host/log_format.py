"""The form of the agent's log, the same in all of its processes. Door: it sets up Python's logging, on stderr.

A line of text for people, or a JSON document for programs; either way one line for each record, so that what a stranger
sent cannot look like a line of its own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)


@dataclass(frozen=True)
class LogSettings:
    """How a process of the agent logs. Its child processes get the same."""

    level: int = logging.INFO
    form: str = TEXT
    """One of FORMATS."""

    def apply(self, process: str = "agent") -> None:
        """Set up the log of this process, `process` says which it is. Warnings of Python, and an error that ends the
        process, become records too."""
        global _applied
        _applied = self
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(self._formatter(process))
        root = logging.getLogger()
        root.handlers[:] = [handler]
        root.setLevel(self.level)
        if self.form == JSON:
            logging.captureWarnings(True)
            sys.excepthook = _log_the_end

    def warn(self, text: str) -> None:
        """Write one line in this form, in a process whose log is not set up: the command that becomes the agent."""
        record = logging.LogRecord("edgepart", logging.WARNING, __file__, 0, "%s", (text,), None)
        print(self._formatter("agent").format(record), file=sys.stderr)

    def _formatter(self, process: str) -> logging.Formatter:
        return JsonFormatter(process) if self.form == JSON else TextFormatter(os.environ)


_applied: LogSettings | None = None


def settings() -> LogSettings:
    """The settings of this process, for its children: those that were applied, or those of its root logger."""
    return _applied or LogSettings(logging.getLogger().getEffectiveLevel())


class TextFormatter(logging.Formatter):
    """Lines for people: the time, the level, the module and the message. The lines of a traceback follow, indented."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # The journal adds the time to each line itself.
        stamp = "" if "JOURNAL_STREAM" in environment else "%(asctime)s "
        super().__init__(f"{stamp}%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return "\\n".join(super().formatMessage(record).splitlines())

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return "\n".join(f"    {line}" for line in super().formatException(ei).splitlines())


class JsonFormatter(logging.Formatter):
    """A JSON document in a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `process` ("agent", or the kind of
    child), `pid`, and `traceback` where there is one."""

    def __init__(self, process: str) -> None:
        super().__init__("%(message)s")
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": self._process,
            "pid": record.process,
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document)


def _log_the_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        logging.getLogger("edgepart").critical("the process ends by an error", exc_info=(kind, error, trace))
