"""Lanes: the compute thread of one deployment, and how it waits for work. A door: a thread, poll().

A lane sleeps in poll() on a bell, which other threads ring, and on connections that it reads itself: those on which the
transfers come that its oldest request waits for. What a lane reads itself need not be handed over by another thread, which
takes longer than a small segment computes.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from threading import RLock, Thread
from typing import Protocol

from edgepart.agent.execution.tasks import START_TRANSFER, RequestTask

EXCLUSIVE_STEP_S = 1.0
"""Seconds for which a step has the device to itself. If it were longer, deployments would disturb each other less; if
shorter, they would wait less for a step that takes long or never ends."""


class BorrowedConnection(Protocol):
    """A connection whose frames another thread reads, unless it is borrowed (agent/net/incoming.py)."""

    def borrow(self) -> bool:
        """Ask to read the connection until `end_loan`. False if that is not possible now."""

    def fileno(self) -> int:
        """A descriptor that becomes readable with the next frame, unless `holds_bytes`."""

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes of the next frame were received already."""

    def read(self) -> bool:
        """Read one frame, and handle it as the other thread does. False if the connection cannot be read any more; the loan
        then has to end."""

    def end_loan(self) -> None:
        """Let others read."""

    def give_back(self) -> None:
        """Say that this thread will not borrow the connection again soon."""


class Lane:
    """The compute thread of one deployment, with all its variants and epochs. The executor's lock guards the attributes."""

    def __init__(self, name: str, lock: RLock) -> None:
        self.name = name
        self.thread: Thread | None = None
        self.task: RequestTask | None = None
        """The request whose step is being done."""
        self.began_s = 0.0
        """The time at which that step began, on the monotonic clock."""
        self.unblocked: tuple[str, int] = ("", START_TRANSFER)
        """The request and the transfer that woke the thread last."""
        self._lock = lock
        self._bell = -1
        """An eventfd, as long as the thread runs."""
        self._asleep = False
        """Whether the bell has to be rung to wake the thread."""
        self._woken = False
        """Whether the thread was woken since it began to wait."""
        self._borrowed: tuple[BorrowedConnection, ...] = ()
        """The connections that were read during the last wait."""
        self._watched: (
            tuple[tuple[BorrowedConnection, ...], select.poll, dict[int, BorrowedConnection]] | None
        ) = None
        """The connections that were watched last, what waits for them and the bell, and they by their descriptors. To make
        this takes about as long as to read a small frame."""

    def has_turn(self, now: float) -> bool:
        """Whether the other lanes have to wait for this one."""
        return self.task is not None and now < self.began_s + EXCLUSIVE_STEP_S

    def start(self, work: Callable[[], None], name: str) -> Thread:
        """Start the thread, which does `work`."""

        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    bell, self._bell = self._bell, -1
                    os.close(bell)

        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.thread = Thread(target=run, name=name, daemon=True)
        self.thread.start()
        return self.thread

    def wake(self) -> None:
        """End the thread's wait, if it waits. The caller holds the lock."""
        self._woken = True
        if self._asleep and self._bell >= 0:
            self._asleep = False
            os.eventfd_write(self._bell, 1)

    def wait(self, patience_s: float | None, connections: tuple[BorrowedConnection, ...] = ()) -> None:
        """Wait until `wake` is called, for `patience_s` seconds at most, and read these connections meanwhile. It may also
        return earlier. The caller, the lane's thread, holds the lock once; others may have it during the wait."""
        if connections != self._borrowed:
            for left in self._borrowed:
                if left not in connections:
                    left.give_back()
            self._borrowed = connections
        self._woken = False
        until = None if patience_s is None else time.monotonic() + patience_s
        self._lock.release()
        try:
            borrowed = tuple([one for one in connections if one.borrow()])
            try:
                self._watch(borrowed, until)
            finally:
                for one in borrowed:
                    one.end_loan()
        finally:
            self._lock.acquire()

    def _watch(self, borrowed: tuple[BorrowedConnection, ...], until: float | None) -> None:
        if self._watched is None or self._watched[0] != borrowed:
            poll, by_descriptor = select.poll(), {one.fileno(): one for one in borrowed}
            for descriptor in (self._bell, *by_descriptor):
                poll.register(descriptor, select.POLLIN | select.POLLRDHUP)
            self._watched = borrowed, poll, by_descriptor
        _, poll, by_descriptor = self._watched
        while True:
            for one in borrowed:
                while one.holds_bytes and not self._woken:
                    if not one.read():
                        return
            # Without the lock: `wake` looks at these two in the other order, so one of both threads sees the other.
            self._asleep = True
            found = None
            if not self._woken:
                found = poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1e3)
            self._asleep = False
            if not found:
                return
            for descriptor, _ in found:
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                elif not self._woken and not by_descriptor[descriptor].read():
                    return
