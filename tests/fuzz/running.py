"""Runs a target's cases, keeps those that reach a new place, and records failures.

Does I/O: a process of its own, with limits on its memory and its time. A case that ends at a place in the
code at which none ended before is kept and mutated further. This is a coarse coverage measure that costs
nothing: the place comes from the traceback of the refusal.
"""

from __future__ import annotations

import random
import resource
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from edgepart.planner.errors import InternalError
from tests.fuzz.target import HANG_S, LARGEST_BYTES, MEMORY_BYTES, Target

MOST_KEPT = 512
MOST_FOUND = 20
"""Different findings after which a target is given up."""

Place = tuple[Any, ...]
TAKEN = "taken"


class Hang(BaseException):
    """A case exceeded its CPU time. Wall time is not limited, because others may have the processor."""


@dataclass(frozen=True)
class Finding:
    """A case that broke the law."""

    case: bytes
    error: str
    """The last lines of the error."""


@dataclass
class Tally:
    """The results of a target's cases."""

    name: str
    cases: int = 0
    accepted: int = 0
    kept: int = 0
    """Number of places at which cases ended."""
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    """CPU time of the slowest case."""
    grown_bytes: int = 0
    """Growth of the process's peak size."""
    findings: dict[Place, Finding] = field(default_factory=dict)


def run(target: Target, cases: int, seed: int, *, limited: bool = True) -> Tally:
    """Run that many cases, seeds first. `limited` bounds this process's memory meanwhile."""
    draw = random.Random(f"{seed} {target.name}")
    with target.door() as take:
        trial = _Trial(target, take, draw)
        before = _peak_bytes()
        _arm()
        try:
            with _limited_memory() if limited else nullcontext():
                trial.go(cases)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    trial.tally.grown_bytes = _peak_bytes() - before
    return trial.tally


class _Trial:
    """One run over a target."""

    def __init__(self, target: Target, take: Any, draw: random.Random) -> None:
        self._target = target
        self._take = take
        self._draw = draw
        self._seeds = list(target.seeds())
        self._kept = list(self._seeds)
        self._places: set[Place] = set()
        self.tally = Tally(target.name)

    def go(self, cases: int) -> None:
        began_s = time.process_time()
        for number in range(cases):
            self._try(self._case(number))
            if len(self.tally.findings) >= MOST_FOUND:
                break
        self.tally.cpu_s = time.process_time() - began_s
        self.tally.kept = len(self._places)

    def _case(self, number: int) -> bytes:
        if number < len(self._seeds):
            return self._seeds[number]
        data = self._kept[int(self._draw.random() * len(self._kept))]
        return self._target.form.mutated(self._draw, data, self._kept, LARGEST_BYTES)

    def _try(self, case: bytes) -> None:
        tally = self.tally
        tally.cases += 1
        signal.setitimer(signal.ITIMER_PROF, HANG_S)
        began_s = time.process_time()
        place = outcome(self._target, self._take, case)
        tally.slowest_s = max(tally.slowest_s, time.process_time() - began_s)
        if isinstance(place, Broken):
            self.tally.findings.setdefault(place.place, Finding(case, place.error))
            return
        tally.accepted += place[:1] == (TAKEN,)
        if place in self._places:
            return
        self._places.add(place)
        if len(self._kept) < MOST_KEPT:
            self._kept.append(case)


@dataclass(frozen=True)
class Broken:
    """A case broke the law at this place."""

    place: Place
    error: str


def outcome(target: Target, take: Any, case: bytes) -> Place | Broken:
    """Return the place where the case ended. For an accepted case it is TAKEN with the result of `take`."""
    try:
        said = take(case)
    except InternalError as error:
        return _broken(error)
    except target.refusals as error:
        return _places(error)
    except (Exception, Hang) as error:  # noqa: BLE001 - any other error of a door is a finding
        return _broken(error)
    return (TAKEN, said)


def _broken(error: BaseException) -> Broken:
    place = (type(error).__name__, *_place(error.__traceback__)[-2:])
    return Broken(place, "".join(traceback.format_exception(error)[-6:]))


def _places(error: BaseException | None) -> Place:
    """Return the places of an error and of its causes."""
    found: Place = ()
    while error is not None and len(found) < 60:
        found += _place(error.__traceback__)
        error = error.__cause__
    return found


def _place(trace: TracebackType | None) -> Place:
    found = []
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_filename[-24:], trace.tb_lineno))
        trace = trace.tb_next
    return tuple(found[:30])


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _limited_memory() -> Iterator[None]:
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _arm() -> None:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"a case takes longer than {HANG_S:g} s of CPU time")

    signal.signal(signal.SIGPROF, ring)
