"""Ticks: a workload's seconds as whole numbers, for solvers that know no others. Facts.

Everything is rounded down. Round down the times of any schedule as well, and it is one of the workload in ticks, because
floor(a) + floor(b) <= floor(a + b): what waited still waits, and nothing overlaps. So a bound in ticks, times the tick, is
a bound in seconds. Times found in ticks are only about right; compact_schedule.py makes a schedule of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor, gcd, inf, lcm

from edgepart.planner.placing.problem.workload import Pair, Workload

EXACT = 10**9
"""Up to so many ticks long may a sample be for ticks that everything is a multiple of."""
ENOUGH = 10**7
"""So many ticks long it is where there are none."""
COARSE = 10**5
"""The number of ticks where no proof is to be hoped for."""
ROUNDED = 1e-12
"""What reading a float as a number of few digits changes at most, relative to it."""


@dataclass(frozen=True)
class Ticks:
    """What everything takes."""

    tick_s: Fraction
    compute: tuple[Mapping[int, int], ...]
    """By task and machine that can run it."""
    move: tuple[Mapping[Pair, int], ...]
    """By tensor and pair of machines, where that can happen."""
    horizon: int
    """None of the better schedules is longer."""

    def round_down(self, seconds: float) -> int:
        """Rounded down."""
        return floor(_fraction(seconds) / self.tick_s)

    def bound_s(self, ticks: float) -> float:
        """What a bound in ticks says about seconds."""
        return self.seconds(max(0, round(ticks))) * (1 - ROUNDED)

    def seconds(self, ticks: float) -> float:
        return float(Fraction(ticks) * self.tick_s)


def ticks(workload: Workload, horizon_s: float, parts: int = ENOUGH) -> Ticks:
    """Ticks with which to find schedules of at most `horizon_s`, about `parts` ticks long unless fewer are exact."""
    compute_s = tuple(
        {m: _fraction(s) for m, s in enumerate(task.compute_s) if s < inf} for task in workload.tasks
    )
    move_s = tuple(
        {
            (a, b): _fraction(workload.transfer_s(tensor, a, b))
            for a in compute_s[tensor.source]
            for b in sorted({m for reader in tensor.readers for m in compute_s[reader]})
            if a != b
        }
        for tensor in workload.tensors
    )
    every = {s for row in compute_s for s in row.values()} | {s for row in move_s for s in row.values()}
    tick_s = _tick(every, _fraction(horizon_s), parts)
    return Ticks(
        tick_s,
        tuple({m: floor(s / tick_s) for m, s in row.items()} for row in compute_s),
        tuple({pair: floor(s / tick_s) for pair, s in row.items()} for row in move_s),
        floor(_fraction(horizon_s) / tick_s),
    )


def _tick(every: Iterable[Fraction], horizon_s: Fraction, parts: int) -> Fraction:
    """What all are multiples of, if it is not too short."""
    if not horizon_s:
        return Fraction(1)
    counted, of = 0, 1
    for seconds in every:
        if not seconds:
            continue
        of, old = lcm(of, seconds.denominator), of
        counted = gcd(counted * (of // old), seconds.numerator * (of // seconds.denominator))
        if horizon_s * of > EXACT * max(counted, 1):
            return horizon_s / parts
    return Fraction(counted, of) if counted else horizon_s / parts


def _fraction(seconds: float) -> Fraction:
    """The number that people read in it: 0.1 is a tenth, and so is 0.1 + 0.2 - 0.2. `ROUNDED` is what this may change."""
    return Fraction(f"{seconds:.13g}")
