"""Timing: what segments take on this device, and requests through this gateway. Door: sessions, the clock, a task.

Segments of a plan are timed when it is ready and before it serves; those of plans that serve are timed by the executor
as they run, and looked at here now and then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median

from edgepart.agent.control import Profile
from edgepart.agent.events import Event, LatencyMeasured, SegmentsTimed
from edgepart.agent.executor import SegmentTime
from edgepart.agent.judging import REQUESTS
from edgepart.agent.messages import Epoch
from edgepart.agent.profiles import ProfileBook
from edgepart.agent.sessions import LoadedSegment, PreparedProgram, made_up_inputs

RUNS = 3
"""Of each segment before its plan serves; the best counts."""
ENOUGH_RUNS = 5
"""Of a segment in requests, before their median counts."""
LOOK_S = 2.0
"""Between two looks at what runs took."""
NEWS = 0.05
"""A latency that moved by less than this part is no news."""


class Timing:
    """For one device's kind and threads."""

    def __init__(
        self, kind: str, threads: int, budget_s: float, book: ProfileBook, post: Callable[[Event], None]
    ) -> None:
        """`budget_s`: seconds that timing a plan's segments may take here, about; 0 times none."""
        self._kind = kind
        self._threads = threads
        self._budget_s = budget_s
        self._book = book
        self._post = post
        self._told: dict[tuple[str, Epoch], tuple[float, int]] = {}

    def time(self, prepared: PreparedProgram) -> tuple[Profile, ...]:
        """Runs the segments that nobody has timed yet, until the budget is used up. To be called in a thread."""
        until = time.perf_counter() + self._budget_s
        found = []
        for loaded in dict.fromkeys(prepared.loaded):
            known = self._book.seconds(loaded.segment.digest, self._kind, self._threads)
            if known is None and (seconds := _best_s(loaded, until)) is not None:
                found.append(self._profile(loaded.segment.digest, seconds))
        return tuple(found)

    async def watch(
        self,
        segments: Callable[[], Mapping[tuple[str, str], SegmentTime]],
        latencies: Callable[[], Mapping[tuple[str, Epoch], tuple[float, ...]]],
    ) -> None:
        """Posts what runs of segments and requests take, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if profiles := tuple(self._profiles(segments())):
                self._post(SegmentsTimed(profiles))
            for event in self._latencies(latencies()):
                self._post(event)

    def _profiles(self, segments: Mapping[tuple[str, str], SegmentTime]) -> Iterator[Profile]:
        for (_, digest), times in segments.items():
            if len(times.recent_s) >= ENOUGH_RUNS:
                yield self._profile(digest, median(times.recent_s))

    def _latencies(self, latencies: Mapping[tuple[str, Epoch], tuple[float, ...]]) -> Iterator[Event]:
        self._told = {key: told for key, told in self._told.items() if key in latencies}
        for key, seconds in latencies.items():
            now = median(seconds)
            before, count = self._told.get(key, (0.0, 0))
            enough = len(seconds) >= REQUESTS
            if enough and (count < REQUESTS or abs(now - before) > NEWS * before):
                self._told[key] = (now, len(seconds))
                yield LatencyMeasured(*key, now, len(seconds))

    def _profile(self, digest: str, seconds: float) -> Profile:
        return Profile(digest, self._kind, self._threads, seconds)


def _best_s(loaded: LoadedSegment, until: float) -> float | None:
    """None where there is no time left, or the segment cannot be run before requests come."""
    if time.perf_counter() >= until:
        return None
    inputs = made_up_inputs(loaded)
    if inputs is None:
        return None
    best = float("inf")
    for _ in range(RUNS):
        began = time.perf_counter()
        loaded.run(inputs)
        best = min(best, time.perf_counter() - began)
        if time.perf_counter() >= until:
            break
    return best
