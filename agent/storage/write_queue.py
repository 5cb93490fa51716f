"""Disk queue: writes the state files in a thread of its own, one after the other, so that a slow disk delays only those who
wait for a write. Door: a thread, and the writes that it is given.

Only the newest version of each file waits, so however slow the disk is, no more writes wait than there are files.
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
"""How many of the last writes the median time of a write is taken over."""

Write = Callable[[], bool]
"""Writes a file and returns whether it is on disk now. An OSError counts as no."""
Told = Callable[[bool], None]
"""Is called with the result of the `Write`."""


class DiskQueue:
    """Writes files in its thread. `put` is called, and calls `told` back, in the event loop's thread. Writes that are put
    after `stop` may be lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, tuple[Write, list[Told]]] = {}
        """The writes that wait, by file, in the order in which they are done."""
        self._changed = threading.Condition()
        self._stopped = False
        self._recent_s: deque[float] = deque(maxlen=RECENT)
        self._began_at = 0.0
        """When the write that is under way began; 0 if none is."""
        self._barriers = itertools.count()
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
        self._thread.start()

    def put(self, file: str, write: Write, told: Told | None = None, *, first: bool = False) -> None:
        """Have a file written. A version of this file that still waits is not written, and its `told` are called after this
        one. `first`: write it before all other files."""
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
        """Have a file written and wait until it was tried; returns whether it is on disk."""
        done: asyncio.Future[bool] = self._loop.create_future()
        self.put(file, write, lambda ok: None if done.done() else done.set_result(ok))
        return await done

    async def caught_up(self) -> None:
        """Wait until every write that waits now was tried."""
        await self.write(f"all before {next(self._barriers)}", lambda: True)

    @property
    def write_s(self) -> float:
        """The seconds that writing a file took lately, or that the write under way has taken if that is longer."""
        under_way_s = time.monotonic() - self._began_at if self._began_at else 0.0
        return max(under_way_s, median(self._recent_s or (0.0,)))

    def stop(self) -> None:
        """Stop the thread; returns when every waiting write was tried. Do not call this in the event loop's thread."""
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
