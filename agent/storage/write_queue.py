"""Disk queue: writes the state files in a thread of its own, one after the other, so that a slow disk delays only callers
that wait for a write. Door: a thread, and the writes that it is given.

Only the newest version of each file waits, so that however slow the disk is, no more writes wait than there are files.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median

log = logging.getLogger(__name__)

RECENT = 5
"""The number of recent writes over which the median time of a write is taken."""

Write = Callable[[], bool]
"""Writes a file and returns whether it is on disk now. An OSError counts as no."""
Told = Callable[[bool], None]
"""Receives the result of the `Write`."""


class DiskQueue:
    """Writes files in its own thread. Call `put` in the event loop's thread, in which `told` is called back. Writes that
    are put after `stop` may be lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, tuple[Write, list[Told]]] = {}
        """The waiting writes, by file, in the order in which they will be done."""
        self._changed = threading.Condition()
        self._stopped = False
        self._recent_s: deque[float] = deque(maxlen=RECENT)
        self._began_at = 0.0
        """The start of the current write, by time.monotonic(); 0 if there is none."""
        self._barriers = itertools.count()
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
        self._thread.start()

    def put(self, file: str, write: Write, told: Told | None = None, *, first: bool = False) -> None:
        """Queue a file for writing. It replaces a version of this file that still waits, whose callbacks `told` are called
        after this write. `first`: write it before all other files."""
        with self._changed:
            _, before = self._waiting.get(file, (write, []))
            waiting = write, [*before, told] if told else before
            if first:
                self._waiting.pop(file, None)
                self._waiting = {file: waiting, **self._waiting}
            else:
                self._waiting[file] = waiting
            self._changed.notify()

    async def write(self, file: str, write: Write) -> bool:
        """Queue a file, wait until writing was tried, and return whether the file is on disk."""
        done: asyncio.Future[bool] = self._loop.create_future()
        self.put(file, write, lambda ok: None if done.done() else done.set_result(ok))
        return await done

    async def caught_up(self) -> None:
        """Wait until every write that waits now has been tried."""
        await self.write(f"all before {next(self._barriers)}", lambda: True)

    @property
    def write_s(self) -> float:
        """The median seconds of recent writes, or the seconds that the current write has taken so far if that is longer."""
        under_way_s = time.monotonic() - self._began_at if self._began_at else 0.0
        return max(under_way_s, median(self._recent_s or (0.0,)))

    def stop(self) -> None:
        """Stop the thread, and return when every waiting write has been tried. Do not call this in the event loop's
        thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopped:
                    self._changed.wait()
                if not self._waiting:
                    return
                file = next(iter(self._waiting))
                write, told = self._waiting.pop(file)
            self._began_at = time.monotonic()
            ok = self._try(file, write)
            self._recent_s.append(time.monotonic() - self._began_at)
            self._began_at = 0.0
            self._tell(told, ok)

    def _try(self, file: str, write: Write) -> bool:
        try:
            return write()
        except OSError as error:
            log.error("%s cannot be written: %s", file, error)
        except Exception:
            log.exception("%s was not written because of a fault in this program; other files are", file)
        return False

    def _tell(self, told: list[Told], ok: bool) -> None:
        for each in told:
            try:
                self._loop.call_soon_threadsafe(each, ok)
            except RuntimeError:  # the loop has ended, so nobody waits any more
                return
