"""Frames: what a source gives, and the line in which they wait. Facts and rules: time is an argument, and no door is here.

A source may be faster than the cluster. Then the newest frames are worth most: the line keeps a few, drops the oldest ones,
and counts what became of each. A frame came once, and is then waiting, under way, answered, failed or dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from edgepart.planner.errors import UsageError

Array = np.ndarray[Any, np.dtype[Any]]

TOLD_EVERY_S = 10.0
"""Seconds between two lines about dropped and failed frames. A shorter time tells sooner; a longer one leaves more of the
terminal to answers."""


@dataclass(frozen=True, slots=True, eq=False)
class FeedFrame:
    """One frame of a source."""

    number: int
    """Counts the source's frames from 1."""
    source: str
    """Where it is from: a file's name, a topic, or a camera."""
    content: Path | bytes | Array
    """A file, a message, or a camera's picture of shape [height, width, 3] whose channels are blue, green and red."""
    came_s: float
    """When it came, on the line's clock."""


@dataclass(frozen=True, slots=True)
class LineLimits:
    """How much a line holds."""

    at_once: int = 2
    """The most requests under way. More of them fill a pipeline of devices; fewer give fresher answers."""
    waiting: int | None = 1
    """The most frames that wait for their turn; None for any number. More of them bridge a pause; fewer give fresher
    answers."""
    max_age_s: float = inf
    """Seconds after which a waiting frame is too old to be sent."""

    def __post_init__(self) -> None:
        if self.at_once < 1 or (self.waiting is not None and self.waiting < 1) or not self.max_age_s > 0:
            raise UsageError("--at-once and --waiting are at least 1, and --max-age is more than 0")


@dataclass(slots=True)
class FeedCounts:
    """What became of the frames so far."""

    came: int = 0
    answered: int = 0
    failed: int = 0
    """Frames that could not be read, and requests that ended with an error."""
    dropped: int = 0
    """Frames that were never sent, because newer ones came, they were too old, or the feed ended."""

    def document(self) -> dict[str, int]:
        return asdict(self)


class FrameLine:
    """The line of one source. `arrive`, then `next` until it returns None; `end` when a frame's request has ended."""

    def __init__(self, limits: LineLimits) -> None:
        self.limits = limits
        self.counts = FeedCounts()
        self.under_way: set[int] = set()
        """The numbers of the frames whose requests are under way."""
        self._waiting: deque[FeedFrame] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self.under_way

    def arrive(self, frame: FeedFrame) -> None:
        """Puts a frame at the end of the line. If the line is full, the oldest waiting frame is dropped."""
        self.counts.came += 1
        self._waiting.append(frame)
        if self.limits.waiting is not None and len(self._waiting) > self.limits.waiting:
            self._waiting.popleft()
            self.counts.dropped += 1

    def next(self, now: float) -> FeedFrame | None:
        """The frame whose request begins now: the oldest one that is not too old. None if there is none, or enough requests
        are under way."""
        while self._waiting and now - self._waiting[0].came_s > self.limits.max_age_s:
            self._waiting.popleft()
            self.counts.dropped += 1
        if not self._waiting or len(self.under_way) >= self.limits.at_once:
            return None
        frame = self._waiting.popleft()
        self.under_way.add(frame.number)
        return frame

    def end(self, number: int, *, answered: bool) -> None:
        """Counts a frame under way as answered, or as failed."""
        self.under_way.remove(number)
        if answered:
            self.counts.answered += 1
        else:
            self.counts.failed += 1

    def drop_waiting(self) -> None:
        """Drops all frames that wait: the feed ends."""
        self.counts.dropped += len(self._waiting)
        self._waiting.clear()


class LossTeller:
    """Says now and then what was lost since it last said so."""

    def __init__(self) -> None:
        self._told_at = -inf
        self._told = FeedCounts()

    def due(self, counts: FeedCounts, now: float) -> str | None:
        """The line to print; None if nothing new was lost, or the last line was printed a short time ago."""
        dropped, failed = counts.dropped - self._told.dropped, counts.failed - self._told.failed
        if not (dropped or failed) or now - self._told_at < TOLD_EVERY_S:
            return None
        came = counts.came - self._told.came
        self._told_at, self._told = now, FeedCounts(**counts.document())
        what = "frame" if came == 1 else "frames"
        text = f"of the last {came} {what}, {dropped} dropped, {failed} failed"
        return f"{text}: the cluster is slower than the source" if dropped else text
