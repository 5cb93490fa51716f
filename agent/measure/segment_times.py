"""Segment times: measures how long segments take on this device, and requests through this gateway. Door: the clock, a
task.

Segments of a plan are timed when the plan is ready and before it serves. While it serves, the executor times each run of
its segments, and this module looks at these times every few seconds. Both tell how far the device has drifted from its
calibration.

Measurements do not count while a device is starved of the CPU (starvation.py). A look may come just after that began, so
its findings are told only when the next look finds no device starved either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from edgepart.agent.cluster.state.drift import DriftBook, compute_drift, is_news, round_to_step
from edgepart.agent.cluster.state.events import DriftMeasured, Event, LatencyMeasured, SegmentsTimed
from edgepart.agent.cluster.state.judging import MIN_REQUESTS, LoneRequests
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.execution.counters import SegmentTime
from edgepart.agent.execution.prepared import RunnableProgram
from edgepart.agent.measure.starvation import ThreadTimes
from edgepart.agent.wire.control import Profile
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.devices.cluster import Device
from edgepart.planner.plans.plan import Program, Segment

LEAST_RUNS = 5
"""Number of a segment's runs in requests before their median counts."""
RECENT_RUNS = 11
"""Number of a segment's last runs whose median counts: a device that slows down is noticed after half as many."""
LOOK_S = 2.0
"""Seconds between two looks at the times of runs."""
LEAST_LATENCY_CHANGE = 0.05
"""The least relative change of a latency for which it is told again."""

Programs = Mapping[str, tuple[Epoch, Program]]
"""This device's program in the plan that serves, and its epoch, by deployment."""
Segments = Mapping[tuple[str, str], SegmentTime]
"""The times of segments, by deployment and `Segment.timed_as`."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at one time."""

    programs: Programs
    segments: Segments


class CpuWaitReader(Protocol):
    """The interface of agent/measure/cpu_wait.py."""

    def read(self) -> ThreadTimes: ...

    def look(self) -> bool: ...

    def spoilt_since(self, before: ThreadTimes, passed_s: float) -> bool: ...


class SegmentTimer:
    """Times the segments of one device, and compares them with its calibration."""

    def __init__(
        self,
        node: str,
        device: Device,
        budget_s: float,
        book: ProfileBook,
        drifts: DriftBook,
        post: Callable[[Event], None],
        rest: Callable[[float], None] = lambda took_s: None,
        starving: CpuWaitReader | None = None,
        engine_drift: Callable[[Segment], float | None] = lambda segment: 1.0,
    ) -> None:
        """`budget_s` is the approximate time in seconds for timing a plan's segments; with 0, none are timed. The books
        contain what this device itself told. `rest` is called after each segment that is timed before its plan serves,
        with the seconds that this took, and may wait, so that plans that serve get their share of the device. Without
        `starving`, all measurements count. `engine_drift` is that of `compute_drift`."""
        self._engine_drift = engine_drift
        self._rest = rest
        self._starving = starving
        self._node = node
        self.device = device
        """What this device can do, as it was measured last."""
        self._budget_s = budget_s
        self._book = book
        self._drifts = drifts
        self._post = post
        self._told: dict[tuple[str, Epoch], tuple[float, int]] = {}
        self._runs: dict[tuple[str, str], int] = {}
        """Number of runs of each segment up to the last look, by deployment and `Segment.timed_as`."""
        self._before: dict[tuple[str, Epoch], Mapping[tuple[str, str], int]] = {}
        """The same numbers when each plan was first seen to serve: earlier runs do not tell how the device is now."""
        self._drifted: dict[tuple[str, Epoch], float] = {}
        """The drift that was told for each plan that serves."""
        self._last: _Look | None = None
        """The last look; None if it does not count."""
        self._timed: dict[tuple[str, Epoch], tuple[float, ...]] = {}
        """Latencies of each plan, in seconds, that count if no device turns out to be starved."""
        self._spoilt: dict[tuple[str, Epoch], int] = {}
        """Number of requests so far that do not count, by plan."""

    def time(self, deployment: str, prepared: RunnableProgram) -> Sequence[DriftMeasured | SegmentsTimed]:
        """Run the segments that have no known time yet, until the budget is used up. On a device that drifted and serves
        no plan of that deployment, run all of them, as the device may have recovered. Call it in a thread."""
        began_all = time.perf_counter()
        threads_before = self._starving.read() if self._starving is not None else {}
        until = began_all + self._budget_s
        expected = self._drifts.factor(self._node, deployment)
        idle = all(name != deployment for name, _ in self._before)
        kind, threads = self._kind(expected), self.device.threads
        took: dict[str, float] = {}
        for timed_as, segment in {one.timed_as: n for n, one in enumerate(prepared.program.segments)}.items():
            known = self._book.seconds(timed_as, kind, threads) is not None
            if known and not (idle and expected != 1.0):
                continue
            began = time.perf_counter()
            if (seconds := prepared.best_s(segment, until - began)) is not None:
                took[timed_as] = seconds
                self._rest(time.perf_counter() - began)
        if self._starving is not None and self._starving.spoilt_since(
            threads_before, time.perf_counter() - began_all
        ):  # These times do not count, so nothing shows that the drift has changed: it is told again.
            return [DriftMeasured(deployment, expected)] if idle and expected != 1.0 else []
        factor = self._drift(prepared.program, took) if idle else None
        found: list[DriftMeasured | SegmentsTimed] = []
        if factor is not None and (expected != 1.0 or is_news(factor, expected)):
            expected = round_to_step(factor)
            found.append(DriftMeasured(deployment, expected))
        if took:
            found.append(SegmentsTimed(self._profiles(took, expected)))
        return found

    async def watch(
        self,
        programs: Callable[[], Programs],
        segments: Callable[[], Segments],
        alone: Callable[[], Mapping[tuple[str, Epoch], LoneRequests]],
        starved: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Post the times of segments and requests, until cancelled. `starved` returns the members on which measurements do
        not count now."""
        while True:
            await asyncio.sleep(LOOK_S)
            spoilt = self._starving is not None and self._starving.look()
            for event in self._confirm_events(programs(), segments(), spoilt=spoilt):
                self._post(event)
            nodes = {*starved(), self._node} if spoilt else {*starved()}
            for event in self._latencies(self._undisturbed_latencies(alone(), nodes)):
                self._post(event)

    def _confirm_events(self, programs: Programs, segments: Segments, *, spoilt: bool) -> list[Event]:
        """The events of the last look, unless this look finds that they do not count."""
        before, self._last = self._last, None if spoilt else _Look(programs, segments)
        if spoilt:
            self._runs = {key: times.runs for key, times in segments.items()}
            self._before = {(name, epoch): self._runs for name, (epoch, _) in programs.items()}
            return []
        return [] if before is None else list(self._look(before.programs, before.segments))

    def _undisturbed_latencies(
        self, alone: Mapping[tuple[str, Epoch], LoneRequests], starved: Collection[str]
    ) -> Mapping[tuple[str, Epoch], tuple[float, ...]]:
        """The latencies up to the last look of plans of which no device was starved."""
        found = {}
        timed, self._timed = self._timed, {}
        self._spoilt = {key: count for key, count in self._spoilt.items() if key in alone}
        for key, one in alone.items():
            if not one.nodes.isdisjoint(starved):
                self._spoilt[key] = one.count
            elif (counting := one.count - self._spoilt.get(key, 0)) > 0:
                self._timed[key] = one.seconds[-counting:]
                found[key] = timed.get(key, ())
        return {key: seconds for key, seconds in found.items() if seconds}

    def _look(self, programs: Programs, segments: Segments) -> Iterator[Event]:
        serving = {(name, epoch): program for name, (epoch, program) in programs.items()}
        self._before = {plan: self._before.get(plan, self._runs) for plan in serving}
        self._drifted = {plan: told for plan, told in self._drifted.items() if plan in serving}
        for plan, program in serving.items():
            yield from self._of(plan, program, segments)
        self._runs = {key: times.runs for key, times in segments.items()}

    def _of(self, plan: tuple[str, Epoch], program: Program, segments: Segments) -> Iterator[Event]:
        """The events of one plan that serves. The drift comes first, because it says how fast the device was that took
        these times."""
        took = {
            timed_as: median(list(times.recent_s)[-min(runs, RECENT_RUNS) :])
            for timed_as in dict.fromkeys(segment.timed_as for segment in program.segments)
            if (times := segments.get((plan[0], timed_as))) is not None
            and (runs := _runs_since(times, self._before[plan].get((plan[0], timed_as), 0))) >= LEAST_RUNS
        }
        told, factor = self._drifted.get(plan), self._drift(program, took)
        known = self._drifts.factor(self._node, plan[0])
        # A drift that has not changed is still told once for each plan, as other members may have dropped it meanwhile.
        if factor is not None and (is_news(factor, known) or (told is None and known != 1.0)):
            known = self._drifted[plan] = round_to_step(factor) if is_news(factor, known) else known
            yield DriftMeasured(plan[0], known)
        if took:
            yield SegmentsTimed(self._profiles(took, known))

    def _latencies(self, latencies: Mapping[tuple[str, Epoch], tuple[float, ...]]) -> Iterator[Event]:
        self._told = {key: told for key, told in self._told.items() if key in latencies}
        for key, seconds in latencies.items():
            now = median(seconds)
            before, count = self._told.get(key, (0.0, 0))
            enough = len(seconds) >= MIN_REQUESTS
            if enough and (count < MIN_REQUESTS or abs(now - before) > LEAST_LATENCY_CHANGE * before):
                self._told[key] = (now, len(seconds))
                yield LatencyMeasured(*key, now, len(seconds))

    def _drift(self, program: Program, took_s: Mapping[str, float]) -> float | None:
        return compute_drift(program, self.device, took_s, self._engine_drift)

    def _kind(self, factor: float) -> str:
        return self.device.with_drift(factor).pace

    def _profiles(self, took: Mapping[str, float], factor: float) -> tuple[Profile, ...]:
        kind, threads = self._kind(factor), self.device.threads
        return tuple(Profile(timed_as, kind, threads, seconds) for timed_as, seconds in took.items())


def _runs_since(times: SegmentTime, before: int) -> int:
    """How many of the runs came after the first `before` ones. All did if fewer were counted since: the counts of a
    deployment begin anew when it comes back."""
    return times.runs - before if times.runs >= before else times.runs
