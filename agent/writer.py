"""Writer: the one thread that writes a connection, and its queue. A door: a thread, a socket, an eventfd.

The thread sleeps in poll() on both the queue's wake-up and the socket, so that an idle connection that the
other side closes is noticed at once, although nobody reads from it.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

from edgepart.agent.frames import Buffer, Frame, encode
from edgepart.agent.stream import Stream
from edgepart.planner.errors import Unavailable

_BATCH_BYTES = 256 << 10


class Writer:
    """Frames go out in the order of `put`. What is queued when the connection ends is lost."""

    def __init__(self, stream: Stream, capacity_bytes: int, name: str, ended: Callable[[str], None]) -> None:
        """`ended` is called once, by the writer's thread, with the reason (also after `close`)."""
        self._stream = stream
        self._capacity_bytes = capacity_bytes
        self._ended = ended
        self._changed = threading.Condition()
        self._queue: deque[list[Buffer]] = deque()
        self._queued_bytes = 0
        """What waits and what is being written."""
        self._over: str | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, frame: Frame, wait_s: float) -> None:
        """Queue a frame; waits up to `wait_s` for room. An empty queue takes a frame of any size.

        Unavailable where the connection is over or there is no room; the frame is then not sent.
        """
        buffers = encode(frame)
        size = sum(map(len, buffers))
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None or self._room(size), wait_s)
            if self._over is not None:
                raise Unavailable(self._over)
            if not self._room(size):
                raise Unavailable(f"{self._queued_bytes} bytes wait already: the other side is slow")
            self._queue.append(buffers)
            self._queued_bytes += size
            if len(self._queue) == 1:
                os.eventfd_write(self._wake, 1)

    def _room(self, size: int) -> bool:
        return not self._queued_bytes or self._queued_bytes + size <= self._capacity_bytes

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is handed to the kernel; False where it took too long or the connection is over."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._over is not None or not self._queued_bytes, timeout_s)
            return done and self._over is None

    def finish(self) -> None:
        """After `flush`: say that nothing more comes; the other side closes when it has read it all."""
        with self._changed:
            if self._over is None and not self._queued_bytes:
                self._stream.end_writing()

    def close(self, why: str) -> None:
        """End the connection; what is queued is dropped. Any thread may call it, `join` waits for the end."""
        with self._changed:
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
            with self._changed:
                why = self._over or "the writer failed"
                self._over = why
                self._queue.clear()
                self._queued_bytes = 0
                self._changed.notify_all()
                # Under the lock: `put` writes to this descriptor under it, and only while not over.
                os.close(self._wake)
            self._stream.close()
            self._ended(why)

    def _write_until_over(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._stream.connection.fileno(), select.POLLIN | select.POLLRDHUP)
        while self._over is None:
            batch, size = self._take()
            if batch:
                self._stream.write_buffers(batch)
                with self._changed:
                    self._queued_bytes -= size
                    self._changed.notify_all()
                continue
            for descriptor, _ in poll.poll():
                if descriptor != self._wake:
                    # Nothing is ever sent to us here: readable means closed or broken.
                    raise Unavailable("connection closed by the other side")
                os.eventfd_read(self._wake)

    def _take(self) -> tuple[list[Buffer], int]:
        with self._changed:
            batch: list[Buffer] = []
            size = 0
            while self._queue and size < _BATCH_BYTES:
                frame = self._queue.popleft()
                batch += frame
                size += sum(map(len, frame))
            return batch, size
