"""Writer: the queue of a connection, and the thread that writes it. A door: a thread, a socket, an eventfd.

The sender itself writes a frame if nothing is queued, because waking a thread would take longer. Nobody waits for the other
side meanwhile: the socket does not block, and what the kernel does not take at once is left to the thread. The thread
sleeps in poll() on both the queue's wake-up and the socket, so that it notices at once when the other side closes an idle
connection, although nobody reads from it.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from edgepart.agent.net.stream import Stream
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import WRITE, sending_lane
from edgepart.agent.wire.frames import Buffer, Frame, encode
from edgepart.planner.errors import Unavailable

_BATCH_BYTES = 256 << 10
"""The thread takes queued frames for one write until they have at least this many bytes."""

AT_ONCE_BYTES = 256 << 10
"""Larger frames are left to the thread: encrypting them would delay the sender for much longer than waking the thread
does."""


class _Outgoing:
    """Frames that are queued or being written: one, or several that are written together."""

    __slots__ = ("began_s", "buffers", "cpu_s", "frame", "left_bytes", "size")

    def __init__(self, frame: Frame, buffers: Sequence[Buffer], size: int) -> None:
        self.frame = frame
        """The first frame, and the only one while frames are recorded."""
        self.buffers = buffers
        """What the kernel has not taken yet."""
        self.left_bytes = size
        """The bytes in `buffers`."""
        self.size = size
        self.began_s: float | None = None
        """The time at which the writing began, while frames are recorded."""
        self.cpu_s = 0.0


class Writer:
    """Sends frames in the order of `put`. Frames that are queued when the connection ends are lost."""

    def __init__(
        self,
        stream: Stream,
        capacity_bytes: int,
        name: str,
        ended: Callable[[str], None],
        recorder: Recorder | None = None,
        node: str = "",
    ) -> None:
        """Set up the writer. Its thread calls `ended` once with the reason (also after `close`). `recorder` records the
        frames that are written to `node`."""
        self._stream = stream
        self._capacity_bytes = capacity_bytes
        self._ended = ended
        self._recorder = recorder or Recorder()
        self._node = node
        self._lock = threading.Lock()
        """Guards the attributes below. A lock is taken faster than the condition that goes with it."""
        self._changed = threading.Condition(self._lock)
        self._awaited = 0
        """The number of threads that wait for a change."""
        self._queue: deque[_Outgoing] = deque()
        self._queued_bytes = 0
        """The bytes of the frames that wait and of the one that is being written."""
        self._writing = False
        """Whether a thread writes now. No other one may, and the queue keeps its first frame."""
        self.sent_bytes = 0
        """The bytes of all frames that the kernel has taken, before TLS. Only who writes changes it."""
        self._over: str | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._stream.connection.settimeout(0.0)
        self._thread.start()

    def put(self, frame: Frame, wait_s: float) -> None:
        """Queue a frame, after waiting up to `wait_s` for room. An empty queue takes a frame of any size.

        Raises Unavailable if the connection is over or there is no room; the frame is then not sent.
        """
        buffers = encode(frame)
        size = sum(map(len, buffers))
        one = _Outgoing(frame, buffers, size)
        with self._lock:
            if self._queued_bytes and not self._room(size):
                self._await(lambda: self._over is not None or self._room(size), wait_s)
            if self._over is not None:
                raise Unavailable(self._over)
            if not self._queued_bytes and size <= AT_ONCE_BYTES:
                self._queued_bytes = size
                self._writing = True  # Before anybody can queue behind it.
            elif self._room(size):
                self._queued_bytes += size
                self._queue.append(one)
                if len(self._queue) == 1 and not self._writing:
                    os.eventfd_write(self._wake, 1)
                return
            else:
                raise Unavailable(f"{self._queued_bytes} bytes wait already: the other side is slow")
        try:
            self._write(one)
        except Unavailable as error:
            self.close(str(error))
            raise

    def _write(self, one: _Outgoing) -> None:
        """Write what the kernel takes now, and let others write. Raises Unavailable if the connection ends."""
        before = one.left_bytes
        try:
            if self._recorder.on:
                self._record(one)
            else:
                one.buffers, one.left_bytes = self._stream.offer(one.buffers, before)
        finally:
            taken = before - one.left_bytes
            self.sent_bytes += taken
            with self._lock:
                self._writing = False
                if self._over is None:  # Otherwise nothing counts any more.
                    self._queued_bytes -= taken
                    if one.left_bytes:
                        self._queue.appendleft(one)
                    if self._queue and threading.current_thread() is not self._thread:
                        os.eventfd_write(self._wake, 1)
                if self._awaited:
                    self._changed.notify_all()

    def _record(self, one: _Outgoing) -> None:
        """Write, and record the frame when all of it is written."""
        began_s, cpu_s = self._recorder.now(), time.thread_time()
        one.began_s = began_s if one.began_s is None else one.began_s
        one.buffers, one.left_bytes = self._stream.offer(one.buffers, one.left_bytes)
        one.cpu_s += time.thread_time() - cpu_s
        if not one.left_bytes:
            lane = sending_lane(self._node)
            self._recorder.add_frame(lane, WRITE, one.began_s, self._node, one.frame, one.size, one.cpu_s)

    def _await(self, is_so: Callable[[], bool], wait_s: float | None) -> bool:
        """Wait until that is so, and return whether it is. The caller holds the lock."""
        self._awaited += 1
        try:
            return self._changed.wait_for(is_so, wait_s)
        finally:
            self._awaited -= 1

    def _room(self, size: int) -> bool:
        return not self._queued_bytes or self._queued_bytes + size <= self._capacity_bytes

    def flush(self, timeout_s: float) -> bool:
        """Wait until the kernel has taken everything. Return False if that took too long or the connection is over."""
        with self._lock:
            done = self._await(lambda: self._over is not None or not self._queued_bytes, timeout_s)
            return done and self._over is None

    def finish(self) -> None:
        """Tell the other side, after `flush`, that nothing more comes. It closes when it has read everything."""
        with self._lock:
            if self._over is None and not self._queued_bytes:
                self._stream.end_writing()

    def close(self, why: str) -> None:
        """End the connection and drop the queued frames. Any thread may call it; `join` waits for the end."""
        with self._lock:
            if self._over is None:
                self._over = why
            self._changed.notify_all()
        self._stream.cut()

    def join(self, timeout_s: float) -> None:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._write_until_over()
        except Unavailable as error:
            self.close(str(error))
        finally:
            with self._lock:
                why = self._over or "the writer failed"
                self._over = why
                self._queue.clear()
                self._queued_bytes = 0
                self._changed.notify_all()
                # Closed under the lock, because `put` holds it to write to this descriptor while `_over` is None.
                os.close(self._wake)
                # A sender may be writing, but not for long: the connection is cut.
                self._await(lambda: not self._writing, None)
            self._stream.close()
            self._ended(why)

    def _write_until_over(self) -> None:
        idle, full = select.poll(), select.poll()
        descriptor = self._stream.connection.fileno()
        for poll, room in ((idle, 0), (full, select.POLLOUT)):
            poll.register(descriptor, select.POLLIN | select.POLLRDHUP | room)
        idle.register(self._wake, select.POLLIN)
        while self._over is None:
            one = self._take()
            if one is not None:
                self._write(one)
                if not one.left_bytes:
                    continue
            for ready, events in (idle if one is None else full).poll():
                if ready == self._wake:
                    os.eventfd_read(self._wake)
                elif events & ~select.POLLOUT:
                    # The other side never sends on this connection: readable means closed or broken.
                    raise Unavailable("connection closed by the other side")

    def _take(self) -> _Outgoing | None:
        """Take the first frames from the queue, in order to write them. None if there is none, or another thread writes.
        Frames that are recorded are taken one by one."""
        with self._lock:
            if self._writing or not self._queue:
                return None
            self._writing = True
            one = self._queue.popleft()
            if not self._recorder.on:
                together = [*one.buffers]
                while self._queue and one.left_bytes < _BATCH_BYTES:
                    more = self._queue.popleft()
                    together += more.buffers
                    one.left_bytes += more.left_bytes
                one.buffers = together
            return one
