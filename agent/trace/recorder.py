"""Recorder: what this agent did when, while a trace is taken. Door: the clock, and threads that record.

Off, it costs those who would record one test of `on`. On, it keeps the latest spans and forgets older ones.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from edgepart.agent.trace.spans import NOTHING, Span, Subject
from edgepart.agent.wire.frames import Frame
from edgepart.agent.wire.inference import NO_EPOCH, Epoch

MOST_SPANS = 1 << 16
"""Kept at once, some 300 bytes each. More: longer traces are whole; fewer: less memory while one is taken."""


@dataclass(frozen=True, slots=True)
class RecordedSpans:
    """What was recorded."""

    spans: list[Span]
    """The spans in the order in which they ended."""
    forgotten: int = 0
    """Earlier ones, which there was no room for."""


class Recorder:
    """One agent's. Any thread may record."""

    def __init__(self) -> None:
        self.on = False
        """Whether spans are wanted: to be looked at before anything is timed for one."""
        self._lock = Lock()
        self._spans: deque[Span] = deque()
        self._forgotten = 0

    now = staticmethod(time.monotonic)
    """The clock that spans are timed by."""

    def start(self, most: int = MOST_SPANS) -> None:
        """Anew; what was recorded before is gone."""
        with self._lock:
            self._spans, self._forgotten, self.on = deque(maxlen=most), 0, True

    def stop(self) -> RecordedSpans:
        """What was recorded since `start`; nothing is kept."""
        with self._lock:
            found = RecordedSpans(list(self._spans), self._forgotten)
            self._spans, self._forgotten, self.on = deque(), 0, False
            return found

    def add(
        self,
        lane: str,
        kind: str,
        began_s: float,
        about: Subject = NOTHING,
        what: str = "",
        peer: str = "",
        transfer: int = -1,
        nbytes: int = 0,
        *,
        ended_s: float | None = None,
        cpu_s: float = 0.0,
    ) -> None:
        """A span that began then and ends now, or at `ended_s`. Dropped where nothing is recorded any more."""
        took_s = max(0.0, (self.now() if ended_s is None else ended_s) - began_s)
        span = Span(lane, kind, began_s, took_s, about, what, peer, transfer, nbytes, cpu_s)
        with self._lock:
            if self.on:
                self._forgotten += len(self._spans) == self._spans.maxlen
                self._spans.append(span)

    @contextmanager
    def time_frame(self, lane: str, kind: str, peer: str, frame: Frame, nbytes: int) -> Iterator[None]:
        """The block writes or takes this frame."""
        began_s, cpu_s = self.now(), time.thread_time()
        try:
            yield
        finally:
            self.add_frame(lane, kind, began_s, peer, frame, nbytes, time.thread_time() - cpu_s)

    def add_frame(
        self, lane: str, kind: str, began_s: float, peer: str, frame: Frame, nbytes: int, cpu_s: float
    ) -> None:
        """A frame that was on its way from then until now."""
        about, transfer = subject_of(frame)
        self.add(lane, kind, began_s, about, frame.kind, peer, transfer, nbytes, cpu_s=cpu_s)


def subject_of(frame: Frame) -> tuple[Subject, int]:
    """What a frame is about, and its transfer; a peer's frame may hold anything and is not checked yet."""
    header = frame.header
    deployment, request, transfer = (header.get(key) for key in ("deployment", "request", "transfer"))
    if not isinstance(deployment, str) or not isinstance(request, str):
        return NOTHING, -1
    match header.get("epoch"):
        case {"term": int(term), "number": int(number)}:
            epoch = Epoch(term, number)
        case _:
            epoch = NO_EPOCH
    return Subject(deployment, epoch, request), transfer if type(transfer) is int else -1
