"""Ticks: a workload's seconds as whole numbers, for solvers that know only these. Facts.

Everything is rounded down. If the times of any schedule are rounded down as well, it is a schedule of the
workload in ticks, because floor(a) + floor(b) <= floor(a + b): tasks still wait for their inputs, and nothing
overlaps. A bound in ticks, times the tick, is therefore a bound in seconds. Times found in ticks are only
about right; compact_schedule.py makes a schedule of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor, gcd, inf, lcm

from edgepart.planner.placing.problem.workload import Pair, Workload

EXACT = 10**9
"""The most ticks of a sample for which the tick is one that all times are multiples of."""
ENOUGH = 10**7
"""The ticks of a sample if there is no such tick."""
COARSE = 10**5
"""The ticks of a sample if no proof can be expected."""
ROUNDED = 1e-12
"""The largest relative change when a float is read as a number of few digits."""


@dataclass(frozen=True)
class Ticks:
    """The times of a workload in ticks."""

    tick_s: Fraction
    compute: tuple[Mapping[int, int], ...]
    """Ticks of each task, by machine that can run it."""
    move: tuple[Mapping[Pair, int], ...]
    """Ticks of each tensor, by pair of machines between which it may travel."""
    horizon: int
    """An upper bound on the ticks of the schedules that are looked for."""

    def round_down(self, seconds: float) -> int:
        """Return `seconds` in ticks, rounded down."""
        return floor(_fraction(seconds) / self.tick_s)

    def bound_s(self, ticks: float) -> float:
        """Return the bound in seconds that follows from a bound in ticks."""
        return self.seconds(max(0, round(ticks))) * (1 - ROUNDED)

    def seconds(self, ticks: float) -> float:
        return float(Fraction(ticks) * self.tick_s)


def ticks(workload: Workload, horizon_s: float, parts: int = ENOUGH) -> Ticks:
    """Return the workload in ticks, for schedules of at most `horizon_s`. The horizon has about `parts`
    ticks, unless all times are multiples of a tick of which it has at most `EXACT`."""
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
    """Return the tick that all times are multiples of; if it is too short, `horizon_s / parts`."""
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
    """Return the decimal number that a float stands for: 0.1 is a tenth, and so is 0.1 + 0.2 - 0.2. The
    relative change is at most `ROUNDED`."""
    return Fraction(f"{seconds:.13g}")
