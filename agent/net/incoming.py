"""Incoming connections: reads the frames of one connection, in a thread of its own or in a thread that waits for them. A
door: a thread, a socket.

A thread that can do nothing before the next frame of a connection comes may read the connection itself (`borrow`). A frame
that another thread reads comes later, as that thread has to be woken first, and then has to wake the one that waits. While
others borrow the connection again and again, as a compute thread does between its steps, its own thread only looks now and
then whether frames were left unread.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable

from edgepart.agent.net.stream import Stream
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import RECEIVE, receiving_lane
from edgepart.agent.wire.frames import Frame, FrameLimits
from edgepart.agent.wire.transfer_headers import TransferHeaders
from edgepart.planner.errors import EdgepartError, InternalError

log = logging.getLogger(__name__)

LOOK_S = 0.005
"""Seconds after which the connection's own thread looks again for frames while other threads read. A frame that none of
them waits for is read up to so much later; shorter times take the processor more often."""


class IncomingConnection:
    """Reads one connection, in one thread at a time. `read` and `end_loan` are for a thread whose `borrow` was granted."""

    def __init__(
        self,
        stream: Stream,
        limits: FrameLimits,
        take: Callable[[Frame], None],
        recorder: Recorder | None = None,
        node: str = "",
    ) -> None:
        """`take` gets each frame, in the thread that read it. Its errors end the reading, as those of the connection do.
        `recorder` records the frames that come from `node`."""
        self._stream = stream
        self._limits = limits
        self._take = take
        self._recorder = recorder or Recorder()
        self._node = node
        self._headers = TransferHeaders()
        self._turn = threading.Lock()
        """Held by the thread that reads, or waits for the next frame in order to read it."""
        self._loans = 0
        self._returned = threading.Event()
        self._fault: EdgepartError | None = None
        """What ended the reading in a thread that had borrowed the connection."""
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Wakes the connection's own thread when it has to raise what ended the reading in another."""
        self._readable, self._next = select.poll(), select.poll()
        for poll in (self._readable, self._next):
            poll.register(stream.connection.fileno(), select.POLLIN | select.POLLRDHUP)
        self._next.register(self._bell, select.POLLIN)

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Read frames until `is_over`. Raises what reading and taking them raise."""
        try:
            self._serve(is_over)
        finally:
            self._turn.acquire()  # For good: another thread may be reading still, and none may begin.
            os.close(self._bell)

    def _serve(self, is_over: Callable[[], bool]) -> None:
        loans = -1
        """The number of loans when the connection was last seen to be readable."""
        while not is_over():
            if not self._turn.acquire(blocking=False):
                self._stand_by()
                continue
            try:
                if self._fault is not None:
                    raise self._fault
                if ready := self._loans == loans or self._is_readable:
                    self._read()
            finally:
                self._turn.release()
            loans = -1
            if not ready:
                before = self._loans
                self._next.poll()
                loans = before

    # For another thread

    def borrow(self) -> bool:
        """Ask to read the connection until `end_loan`. False if it is being read, or has ended."""
        if not self._turn.acquire(blocking=False):
            return False
        if self._fault is not None or self._stream.connection.fileno() < 0:
            self._turn.release()
            return False
        self._loans += 1
        return True

    def fileno(self) -> int:
        """The descriptor that becomes readable with the next frame, unless `holds_bytes` already."""
        return self._stream.connection.fileno()

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes have been received that belong to no frame that was read."""
        return self._stream.holds_bytes

    def read(self) -> bool:
        """Read one frame. Returns False if the connection cannot be read any more: its own thread raises the error as soon
        as the loan has ended."""
        try:
            self._read()
            return True
        except EdgepartError as error:
            self._fail(error)
        except Exception as error:
            log.exception("a frame could not be handled")
            self._fail(InternalError(f"a frame could not be handled: {error!r}"))
        return False

    def end_loan(self) -> None:
        """Let others read. If this thread borrows the connection again soon, the connection's own thread sleeps on."""
        self._turn.release()

    def give_back(self) -> None:
        """Have the connection's own thread read it again at once, as no other thread will."""
        self._returned.set()

    # Inside

    def _fail(self, fault: EdgepartError) -> None:
        self._fault = fault
        self._returned.set()
        os.eventfd_write(self._bell, 1)

    def _read(self) -> None:
        before_s = time.thread_time() if self._recorder.on else None
        frame = self._stream.read(self._limits, headers=self._headers)
        self._take(frame)
        if self._recorder.on:
            lane, began_s = receiving_lane(self._node), self._stream.began_s
            cpu_s = 0.0 if before_s is None else time.thread_time() - before_s
            self._recorder.add_frame(lane, RECEIVE, began_s, self._node, frame, frame.payload_bytes, cpu_s)

    @property
    def _is_readable(self) -> bool:
        """Whether there is something to read. Only for the thread whose turn it is, as the others."""
        return self.holds_bytes or bool(self._readable.poll(0))

    def _stand_by(self) -> None:
        """Wait until other threads do not read any more, or do not read what has come."""
        loans = -1
        while self._turn.locked() or (self._loans != loans and not self._readable.poll(0)):
            loans = self._loans
            if self._returned.wait(LOOK_S):
                self._returned.clear()
                return
