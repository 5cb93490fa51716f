"""Verdicts: what trials and runs have shown of engines and segments, kept in a file of the state directory. Facts and
rules; state_files.py and admitted_programs.py read and write.

A refusal is for one engine and one segment, and stays: an engine that crashed, hung, gave wrong answers or failed is not
tried again for that segment, until the engine's software or options change. An admission says that the answers were
compared with the CPU's and were the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from edgepart.planner.errors import FrameError
from edgepart.planner.plans.plan import Program, Segment

ADMITTED = "is admitted"
CRASHES, HANGS, LIES, FAILS = "crashes", "hangs", "lies", "fails"
OUTCOMES = (ADMITTED, CRASHES, HANGS, LIES, FAILS)
"""How a trial ends. LIES: the answers are not the CPU's. FAILS: no answers, with a reason."""
MOST_VERDICTS = 2048
"""The most verdicts that are remembered; the oldest are forgotten, and such segments tried again."""
MOST_LACKS = 64
"""The most operators that a verdict names."""
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

    @property
    def refused(self) -> bool:
        return self.outcome != ADMITTED


class VerdictBook:
    """The verdicts of this box."""

    def __init__(self, verdicts: Iterable[EngineVerdict] = (), made_with: str = "") -> None:
        """`made_with` is what is installed now. Verdicts that were made with something else do not count."""
        self._made_with = made_with
        self._known: dict[tuple[str, str], EngineVerdict] = {}
        for one in verdicts:
            if one.made_with == made_with:
                self._known[one.engine, one.segment] = one

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
        return True

    def all(self) -> tuple[EngineVerdict, ...]:
        """All verdicts, the oldest first."""
        return tuple(self._known.values())

    def refusals(self) -> tuple[EngineVerdict, ...]:
        return tuple(one for one in self.all() if one.refused)

    def settle(self, program: Program) -> Program:
        """The program with the CPU in place of engines that are refused for a segment."""
        return _leave(
            program, lambda one: (known := self.find(one.engine, one.digest)) is not None and known.refused
        )


def on_cpu(program: Program) -> Program:
    """The program with all segments on the CPU."""
    return _leave(program, lambda segment: True)


def _leave(program: Program, leaves: Callable[[Segment], bool]) -> Program:
    """The program with the CPU in place of the engines of some segments. What was calibrated for the engine does not hold
    for the CPU, so such a segment does not count in a drift."""
    if not any(one.engine for one in program.segments):
        return program
    segments = tuple(
        replace(one, engine="", calibrated_s=0.0) if one.engine and leaves(one) else one
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
    texts, lacks = {key: value for key, value in entry.items() if key != "lacks"}, entry.get("lacks", ())
    listed = isinstance(lacks, list | tuple) and all(isinstance(name, str) for name in lacks)
    if (
        not listed
        or not all(isinstance(value, str) for value in texts.values())
        or entry["outcome"] not in OUTCOMES
    ):
        raise FrameError(f": no verdict about an engine: {str(entry)[:80]}")
    return EngineVerdict(**texts, lacks=tuple(lacks))
