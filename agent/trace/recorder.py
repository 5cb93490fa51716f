"""Recorder: records what this agent does, and when, while a trace is taken. Door: the clock, and threads that record.

While the recorder is off, code that would record a span only tests `on`. While it is on, it keeps the latest spans and
forgets older ones.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from threading import Lock

from edgepart.agent.trace.spans import NOTHING, Span, Subject
from edgepart.agent.wire.frames import Frame
from edgepart.agent.wire.inference import NO_EPOCH, Epoch

MOST_SPANS = 1 << 16
"""The most spans kept at once, of some 300 bytes each. With more, longer traces are complete; with fewer, taking a trace
needs less memory."""


@dataclass(frozen=True, slots=True)
class RecordedSpans:
    """The spans of one agent in a trace."""

    spans: list[Span]
    """The spans in the order in which they ended."""
    forgotten: int = 0
    """Number of earlier spans, for which there was no room."""


class Recorder:
    """The recorder of one agent. Any thread may record."""

    def __init__(self) -> None:
        self.on = False
        """Whether spans are wanted. Test this before timing anything for a span."""
        self._lock = Lock()
        self._spans: deque[Span] = deque()
        self._forgotten = 0

    now = staticmethod(time.monotonic)
    """The clock by which spans are timed."""

    def start(self, most: int = MOST_SPANS) -> None:
        """Begin to record, and forget all earlier spans."""
        with self._lock:
            self._spans, self._forgotten, self.on = deque(maxlen=most), 0, True

    def stop(self) -> RecordedSpans:
        """Stop recording, and return the spans since `start`. The recorder keeps none of them."""
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
        """Add a span that began at `began_s` and ends now, or at `ended_s`. If the recorder is off, the span is dropped."""
        took_s = max(0.0, (self.now() if ended_s is None else ended_s) - began_s)
        span = Span(lane, kind, began_s, took_s, about, what, peer, transfer, nbytes, cpu_s)
        with self._lock:
            if self.on:
                self._forgotten += len(self._spans) == self._spans.maxlen
                self._spans.append(span)

    def add_frame(
        self, lane: str, kind: str, began_s: float, peer: str, frame: Frame, nbytes: int, cpu_s: float
    ) -> None:
        """Add a span for a frame that was on its way from `began_s` until now."""
        about, transfer = subject_of(frame)
        self.add(lane, kind, began_s, about, frame.kind, peer, transfer, nbytes, cpu_s=cpu_s)


def subject_of(frame: Frame) -> tuple[Subject, int]:
    """The subject of a frame, and the number of its transfer; NOTHING and -1 if it has none. The frame comes from a peer
    and is not checked yet, so it may hold anything."""
    if frame.message is not None:
        message = frame.message
        return Subject(message.deployment, message.epoch, message.request), message.transfer
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
