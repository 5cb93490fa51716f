"""Rewards: what many placements of one workload are worth at once, for training. Rules only."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from edgepart.planner.placing.engine.batched_dispatch import batched_makespans
from edgepart.planner.placing.engine.flat_workload import Booleans, Floats, Integers, flatten
from edgepart.planner.placing.engine.judge import compiled_code, is_prepared
from edgepart.planner.placing.problem.workload import Workload

INVALID = -10.0
"""The reward of a placement that does not fit (GDP)."""


@dataclass(frozen=True)
class Judgement:
    """What b placements are worth."""

    makespan_s: Floats
    """(b,); inf for those that do not fit."""
    fits: Booleans
    """(b,). Whether each fits into the machines' memory, with tasks only where they can run."""
    reward: Floats
    """(b,). GDP's: minus the square root of the makespan, or `INVALID`."""

    def advantage(self) -> Floats:
        """Return how much better than the mean each reward is, in standard deviations, (b,)."""
        return np.asarray((self.reward - self.reward.mean()) / (self.reward.std() + 1e-8))


@dataclass(frozen=True)
class BestDrawn:
    """The best placement of a graph that was drawn so far."""

    placement: tuple[int, ...] = ()
    """() if none that was drawn fits."""
    makespan_s: float = inf

    def or_better(self, placements: Integers, judged: Judgement) -> BestDrawn:
        """Return the best of `placements`, (b, n), if it is better than this one, and this one otherwise."""
        best = int(judged.makespan_s.argmin())
        if judged.makespan_s[best] >= self.makespan_s:
            return self
        return BestDrawn(tuple(placements[best].tolist()), float(judged.makespan_s[best]))


class Rewards:
    """Judges placements of one workload.

    Makespans are those of tasks by their upward ranks where compiled schedules are prepared (judge.py), and else
    those of a fixed order (batched_dispatch.py). The source takes the root of seconds. Ours are in units of the time
    that the fastest machine alone would take, so that a graph's size does not change what -10 means."""

    def __init__(self, workload: Workload) -> None:
        self._flat = flatten(workload)
        self._kept_bytes = np.array([task.memory_bytes for task in workload.tasks])
        self._most_bytes = np.array([machine.memory_bytes for machine in workload.machines])
        alone_s = self._flat.compute_s.sum(0)
        least_s = self._flat.compute_s.min(1).sum()
        self.unit_s = float(alone_s.min() if alone_s.min() < inf else least_s) or 1.0
        """The seconds of computing on the fastest machine that can run all tasks; if none can, of each task on its best."""

    def judge(self, placements: Integers) -> Judgement:
        """Judge the rows of `placements`, (b, n)."""
        machines = range(len(self._most_bytes))
        kept = np.stack([(placements == machine) @ self._kept_bytes for machine in machines], 1)
        able = np.isfinite(self._flat.compute_s[np.arange(placements.shape[1]), placements]).all(1)
        fits = np.asarray(able & (kept <= self._most_bytes).all(1))
        makespan_s = np.full(len(placements), inf)
        makespan_s[fits] = self._makespans_s(placements[fits])
        reward = np.where(fits, -np.sqrt(makespan_s / self.unit_s), INVALID)
        return Judgement(makespan_s, fits, reward)

    def _makespans_s(self, placements: Integers) -> Floats:
        if not is_prepared():
            return batched_makespans(self._flat, placements, self._flat.order)
        code, flat = compiled_code(), self._flat
        return np.array(
            [code.schedule(flat, row, code.rank_upward(flat, row)).makespan_s for row in placements]
        )
