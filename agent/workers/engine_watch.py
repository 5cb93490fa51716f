"""Engine watch: what workers ask and tell of engines, and what they hold against them. Facts and rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgepart.agent.engines.verdicts import HANGS, EngineVerdict
from edgepart.agent.execution.prepared import describe_segment
from edgepart.planner.plans.plan import Program, Segment

ENGINE_HANGS_S, ENGINE_HANGS_TIMES = 10.0, 20.0
"""An engine whose run had to be ended is refused for the segment if the run took so many seconds, and so many times what
was predicted: engines cannot be interrupted, and a run that is only long is no fault."""


@dataclass(frozen=True, slots=True)
class EngineWatch:
    """What workers ask and tell of engines."""

    settle: Callable[[Program], Program] = lambda program: program
    """Returns the program with the CPU in place of engines that are refused."""
    noted: Callable[[Segment, EngineVerdict], None] = lambda segment, verdict: None
    """Is called, in any thread, when an engine failed a segment; `settle` knows of it from then on."""

    def blame(self, segment: Segment, outcome: str, why: str) -> None:
        """Note that the segment's engine failed it. `outcome` is one of verdicts.py."""
        self.noted(segment, EngineVerdict(segment.engine, segment.digest, outcome, why))

    def blame_all(self, program: Program, outcome: str, why: str) -> bool:
        """Blame the engines of a program that could not be loaded: those whose segment `why` names, or else all. Returns
        whether there are any."""
        used = [one for one in program.segments if one.engine]
        named = [one for one in used if describe_segment(one) in why]
        for segment in named or used:
            self.blame(segment, outcome, why)
        return bool(used)

    def blame_if_hung(self, segment: Segment, took_s: float) -> None:
        """Blame the segment's engine, if it has one, for a run that has to be ended after so many seconds."""
        if segment.engine and took_s > max(ENGINE_HANGS_S, ENGINE_HANGS_TIMES * segment.compute_s):
            self.blame(segment, HANGS, f"a run took more than {took_s:.0f} s and had to be ended")
