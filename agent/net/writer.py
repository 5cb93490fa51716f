"""Writer: the queue of a connection, and the thread that writes it. A door: a thread, a socket, an eventfd.

The sender itself writes a small frame if nothing is queued and the kernel has room, because waking a thread would take
longer. The thread sleeps in poll() on both the queue's wake-up and the socket, so that it notices at once when the other
side closes an idle connection, although nobody reads from it.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
import threading
from collections import deque
from collections.abc import Callable

from edgepart.agent.net.stream import Stream
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import WRITE, sending_lane
from edgepart.agent.wire.frames import Buffer, Frame, encode
from edgepart.planner.errors import Unavailable

_INT = struct.Struct("@i")
_ZERO = bytes(_INT.size)

_BATCH_BYTES = 256 << 10
"""The thread takes queued frames for one write until they have at least this many bytes."""

AT_ONCE_BYTES = 64 << 10
"""Larger frames are left to the thread: encrypting them would delay the sender for longer than waking the thread does."""

_ROOM = 4
"""A frame is written at once only if it and the unsent bytes fit in this fraction (1 / _ROOM) of the kernel's buffer,
because the kernel counts its own overhead too."""


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
        self._queue: deque[tuple[list[Buffer], Frame]] = deque()
        self._queued_bytes = 0
        """The bytes that wait and those that are being written."""
        self.sent_bytes = 0
        """The bytes of all frames that the kernel has taken, before TLS. Only who holds `_writing` changes it."""
        self._writing = threading.Lock()
        """The lock that is held while bytes are written. It is taken under `_changed` only if nothing is queued, when
        nobody holds it."""
        self._over: str | None = None
        self._capacity = 0
        """The bytes that the kernel's buffer was last known to take."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, frame: Frame, wait_s: float) -> None:
        """Queue a frame, after waiting up to `wait_s` for room. An empty queue takes a frame of any size.

        Raises Unavailable if the connection is over or there is no room; the frame is then not sent.
        """
        buffers = encode(frame)
        size = sum(map(len, buffers))
        with self._lock:
            if self._queued_bytes and not self._room(size):
                self._await(lambda: self._over is not None or self._room(size), wait_s)
            if self._over is not None:
                raise Unavailable(self._over)
            if not self._room(size):
                raise Unavailable(f"{self._queued_bytes} bytes wait already: the other side is slow")
            at_once = not self._queued_bytes and self._takes_at_once(size)
            self._queued_bytes += size
            if at_once:
                self._writing.acquire()  # Before anybody can queue behind it.
            else:
                self._queue.append((buffers, frame))
                if len(self._queue) == 1:
                    os.eventfd_write(self._wake, 1)
        if at_once:
            self._write_at_once(buffers, size, frame)

    def _takes_at_once(self, size: int) -> bool:
        """Whether the kernel has enough room for writing not to wait for the other side."""
        descriptor = self._stream.connection.fileno()
        if size > AT_ONCE_BYTES or descriptor < 0:
            return False
        (unsent,) = _INT.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, _ZERO))
        if unsent + size > self._capacity // _ROOM:  # The kernel may have enlarged it meanwhile.
            self._capacity = self._stream.connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        return bool(unsent + size <= self._capacity // _ROOM)

    def _write_at_once(self, buffers: list[Buffer], size: int, frame: Frame) -> None:
        """Write the buffers in the sender's thread, which holds `_writing`. Raises Unavailable if the connection ends."""
        try:
            self._write(buffers, size, frame)
        except Unavailable as error:
            self.close(str(error))
            raise
        finally:
            self._writing.release()
            self._written(size)

    def _write(self, buffers: list[Buffer], size: int, frame: Frame) -> None:
        """Write the buffers. `frame` is the first frame in them, and the only one while frames are recorded."""
        if not self._recorder.on:
            self._stream.write_buffers(buffers, nbytes=size)
        else:
            with self._recorder.time_frame(sending_lane(self._node), WRITE, self._node, frame, size):
                self._stream.write_buffers(buffers)
        self.sent_bytes += size

    def _written(self, size: int) -> None:
        with self._lock:
            # If the connection has ended meanwhile, the count is 0 already.
            self._queued_bytes = max(0, self._queued_bytes - size)
            if self._awaited:
                self._changed.notify_all()

    def _await(self, is_so: Callable[[], bool], wait_s: float) -> bool:
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
            with self._writing:  # A sender may be writing, but not for long: the connection is cut.
                self._stream.close()
            self._ended(why)

    def _write_until_over(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._stream.connection.fileno(), select.POLLIN | select.POLLRDHUP)
        while self._over is None:
            batch, size, first = self._take()
            if first is not None:
                with self._writing:
                    self._write(batch, size, first)
                self._written(size)
                continue
            for descriptor, _ in poll.poll():
                if descriptor != self._wake:
                    # The other side never sends on this connection: readable means closed or broken.
                    raise Unavailable("connection closed by the other side")
                os.eventfd_read(self._wake)

    def _take(self) -> tuple[list[Buffer], int, Frame | None]:
        """Take buffers from the queue. Return them, their bytes and the first frame in them. Frames that are recorded are
        taken one by one."""
        with self._lock:
            batch: list[Buffer] = []
            size = 0
            first = self._queue[0][1] if self._queue else None
            while self._queue and size < (1 if self._recorder.on else _BATCH_BYTES):
                buffers, _ = self._queue.popleft()
                batch += buffers
                size += sum(map(len, buffers))
            return batch, size, first
