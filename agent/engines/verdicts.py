"""Verdicts: what trials and runs have shown of engines and segments, kept in a file of the state directory. Facts and
rules; state_files.py and admitted_programs.py read and write.

A refusal is for one engine and one segment, and stays: an engine that crashed, hung, gave wrong answers, failed or took
longer than the CPU is not tried again for that segment, until the engine's software or options change. Where the answers
were the CPU's, the verdict says how long both took: calibration knows operators, not what a provider makes of many of them
together, so a model's own segments say how much an engine gives for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import inf, isfinite
from typing import Any

from edgepart.planner.errors import FrameError
from edgepart.planner.figures import format_seconds
from edgepart.planner.plans.plan import Program, Segment

ADMITTED = "is admitted"
CRASHES, HANGS, LIES, FAILS = "crashes", "hangs", "lies", "fails"
SLOWER = "is slower"
OUTCOMES = (ADMITTED, CRASHES, HANGS, LIES, FAILS, SLOWER)
"""How a trial ends. LIES: the answers are not the CPU's. FAILS: no answers, with a reason. SLOWER: the answers are right,
and the CPU has them sooner."""
MOST_VERDICTS = 2048
"""The most verdicts that are remembered; the oldest are forgotten, and such segments tried again."""
MOST_LACKS = 64
"""The most operators that a verdict names."""
MOST_ENGINE_DRIFT = 16.0
"""The most by which trials correct an engine's calibration, either way."""
MOST_WHY = 400
"""The longest reason, in characters."""


@dataclass(frozen=True, slots=True)
class EngineVerdict:
    """How one engine computes one segment."""

    engine: str
    segment: str
    """The segment's digest."""
    outcome: str
    """One of OUTCOMES."""
    why: str = ""
    """What was seen, in words; of an admission, how far off the answers are."""
    model: str = ""
    """The digest of the model that the segment is of."""
    made_with: str = ""
    """The software and options for which the verdict holds."""
    lacks: tuple[str, ...] = ()
    """Names of the segment's operators that the engine does not take, as far as they are known: it may take the others."""
    cpu_s: float = 0.0
    """Seconds that the segment took on the CPU; 0 if it was not timed on both."""
    engine_s: float = 0.0
    """Seconds that it took on the engine."""
    times_cpu: float = 0.0
    """How many times as long as the CPU the engine should take by their calibrations (`Segment.times_cpu`)."""

    @property
    def refused(self) -> bool:
        return self.outcome != ADMITTED

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong with the engine."""
        return self.outcome not in (ADMITTED, SLOWER)

    @property
    def expected_s(self) -> float:
        """Seconds that the segment should take on the engine by the calibrations and by what it took on the CPU."""
        return self.cpu_s * self.times_cpu

    @property
    def is_timed(self) -> bool:
        return not self.is_fault and self.engine_s > 0 and 0 < self.expected_s < inf


def compare_times(verdict: EngineVerdict) -> EngineVerdict:
    """The verdict, which is SLOWER in place of ADMITTED if the engine took longer than the CPU."""
    if verdict.outcome != ADMITTED or not verdict.is_timed or verdict.engine_s <= verdict.cpu_s:
        return verdict
    why = f"it takes {format_seconds(verdict.engine_s)}, the CPU {format_seconds(verdict.cpu_s)}"
    return replace(verdict, outcome=SLOWER, why=why)


def count_refusals(refusals: Iterable[EngineVerdict]) -> list[tuple[EngineVerdict, int]]:
    """The last refusal of each engine by outcome, and how many there are like it: a slow segment does not hide a crash."""
    found: dict[tuple[str, str], tuple[EngineVerdict, int]] = {}
    for one in refusals:
        _, count = found.get((one.engine, one.outcome), (one, 0))
        found[one.engine, one.outcome] = one, count + 1
    return [*found.values()]


@dataclass(frozen=True, slots=True)
class EngineDrift:
    """How much longer an engine takes for one model than calibrated, compared with the CPU."""

    engine: str
    model: str
    """The model's digest."""
    drift: float


class VerdictBook:
    """The verdicts of this box."""

    def __init__(self, verdicts: Iterable[EngineVerdict] = (), made_with: str = "") -> None:
        """`made_with` is what is installed now. Verdicts that were made with something else do not count."""
        self._made_with = made_with
        self._known: dict[tuple[str, str], EngineVerdict] = {}
        for one in verdicts:
            if one.made_with == made_with:
                self._known[one.engine, one.segment] = one
        self._drifts = self._sum_up()
        """The drift of each engine for each model, which is asked for more often than it changes."""

    def find(self, engine: str, segment: str) -> EngineVerdict | None:
        return self._known.get((engine, segment))

    def note(self, verdict: EngineVerdict) -> bool:
        """Remember a verdict; return whether it is news. A refusal is never replaced by an admission: what crashed once may
        do so again."""
        key = verdict.engine, verdict.segment
        known = self._known.get(key)
        if known is not None and (known.refused or not verdict.refused):
            return False
        self._known.pop(key, None)
        self._known[key] = replace(
            verdict, made_with=self._made_with, why=verdict.why[:MOST_WHY], lacks=verdict.lacks[:MOST_LACKS]
        )
        while len(self._known) > MOST_VERDICTS:
            del self._known[next(iter(self._known))]
        self._drifts = self._sum_up()
        return True

    def all(self) -> tuple[EngineVerdict, ...]:
        """All verdicts, the oldest first."""
        return tuple(self._known.values())

    def refusals(self) -> tuple[EngineVerdict, ...]:
        return tuple(one for one in self.all() if one.refused)

    def drifts(self) -> tuple[EngineDrift, ...]:
        """The drift of each engine for each model of which segments were timed, all of them together."""
        return tuple(EngineDrift(*key, drift) for key, drift in self._drifts.items())

    def drift_of(self, segment: Segment) -> float | None:
        """The factor by which the segment's engine takes longer than calibrated for the segment's model; None if that is
        not known. The CPU's is 1."""
        if not segment.engine:
            return 1.0
        known = self.find(segment.engine, segment.digest)
        return self._drifts.get((known.engine, known.model)) if known is not None else None

    def _sum_up(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], _Sum] = {}
        for one in self.all():
            if one.is_timed:
                total = found.setdefault((one.engine, one.model), _Sum())
                total.engine_s += one.engine_s
                total.expected_s += one.expected_s
        return {key: limited(one.engine_s / one.expected_s) for key, one in found.items()}

    def settle(self, program: Program) -> Program:
        """The program with the CPU in place of engines that are refused for a segment."""
        return _leave(
            program, lambda one: (known := self.find(one.engine, one.digest)) is not None and known.refused
        )


@dataclass
class _Sum:
    engine_s: float = 0.0
    expected_s: float = 0.0


def limited(drift: float) -> float:
    """The drift within MOST_ENGINE_DRIFT and its inverse.

    >>> limited(0.5), limited(1e6)
    (0.5, 16.0)
    """
    return min(max(drift, 1 / MOST_ENGINE_DRIFT), MOST_ENGINE_DRIFT)


def on_cpu(program: Program) -> Program:
    """The program with all segments on the CPU."""
    return _leave(program, lambda segment: True)


def _leave(program: Program, leaves: Callable[[Segment], bool]) -> Program:
    """The program with the CPU in place of the engines of some segments. What was calibrated for the engine does not hold
    for the CPU, so such a segment does not count in a drift."""
    if not any(one.engine for one in program.segments):
        return program
    segments = tuple(
        replace(one, engine="", calibrated_s=0.0, times_cpu=0.0) if one.engine and leaves(one) else one
        for one in program.segments
    )
    return program if segments == program.segments else replace(program, segments=segments)


def verdicts_to_json(verdicts: Iterable[EngineVerdict]) -> list[dict[str, Any]]:
    return [asdict(one) for one in verdicts]


def verdict_from_json(entry: Any) -> EngineVerdict:
    """The verdict in an entry of a document. Raises FrameError if it is none."""
    known = {one.name for one in fields(EngineVerdict)}
    if not isinstance(entry, Mapping) or not {"engine", "segment", "outcome"} <= entry.keys() <= known:
        raise FrameError(f": no verdict about an engine: {str(entry)[:80]}")
    lacks = entry.get("lacks", ())
    seconds = {key: entry.get(key, 0.0) for key in ("cpu_s", "engine_s", "times_cpu")}
    texts = {key: value for key, value in entry.items() if key != "lacks" and key not in seconds}
    listed = isinstance(lacks, list | tuple) and all(isinstance(name, str) for name in lacks)
    if (
        not listed
        or not all(isinstance(value, str) for value in texts.values())
        or not all(map(is_figure, seconds.values()))
        or entry["outcome"] not in OUTCOMES
    ):
        raise FrameError(f": no verdict about an engine: {str(entry)[:80]}")
    return EngineVerdict(**texts, lacks=tuple(lacks), **seconds)


def is_figure(value: Any) -> bool:
    """Whether a value of a document is a finite number that is not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0
