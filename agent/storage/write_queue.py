"""Disk queue: the state files are written in a thread of their own, one after the other, so that a slow disk delays nobody
but those who wait for it. Door: a thread, and what it is given to do.

Of each file only the newest version waits: however slow the disk is, no more is waiting than there are files.
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
"""Writes whose median says how slow the disk is."""

Write = Callable[[], bool]
"""Writes something, and says whether it is on disk now. OSError counts as no."""
Told = Callable[[bool], None]
"""Is told what `Write` said."""


class DiskQueue:
    """`put` and what `put` is given as `told` are for the event loop's thread. After `stop` nothing is taken any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, tuple[Write, list[Told]]] = {}
        """By file, in the order in which they are to be written."""
        self._changed = threading.Condition()
        self._stopped = False
        self._recent_s: deque[float] = deque(maxlen=RECENT)
        self._began_at = 0.0
        """When the write that is under way began; 0: none is."""
        self._barriers = itertools.count()
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
        self._thread.start()

    def put(self, file: str, write: Write, told: Told | None = None, *, first: bool = False) -> None:
        """Have it written. A version of this file that still waits is not written, and whoever waits for that one waits for
        this one. `first`: before all others."""
        with self._changed:
            _, before = self._waiting.get(file, (write, []))
            waiting = write, [*before, told] if told else before
            if first:
                self._waiting.pop(file, None)
                self._waiting = {file: waiting, **self._waiting}
            else:
                self._waiting[file] = waiting
            self._changed.notify()

    async def written(self, file: str, write: Write) -> bool:
        """The same, and wait until it was tried."""
        done: asyncio.Future[bool] = self._loop.create_future()
        self.put(file, write, lambda ok: None if done.done() else done.set_result(ok))
        return await done

    async def caught_up(self) -> None:
        """Waits until all that waits now was tried."""
        await self.written(f"all before {next(self._barriers)}", lambda: True)

    @property
    def write_s(self) -> float:
        """What writing a file took of late, or has taken so far."""
        under_way_s = time.monotonic() - self._began_at if self._began_at else 0.0
        return max(under_way_s, median(self._recent_s or (0.0,)))

    def stop(self) -> None:
        """Returns when all that waits was tried. Not for the event loop's thread."""
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
            log.exception("%s was not written: a fault of this program; others are", file)
        return False

    def _tell(self, told: list[Told], ok: bool) -> None:
        for each in told:
            try:
                self._loop.call_soon_threadsafe(each, ok)
            except RuntimeError:  # the loop has ended: nobody waits any more
                return
