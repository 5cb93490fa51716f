"""Decoding: placements of a workload by list scheduling that a network biases. Rules only.

Tasks are placed in the order of their upward rank. A task goes to the machine with the highest score: a bias that the
network gives to the task on this machine, and how the machine stands at that moment (when the task would be done there, how
long it would wait, what is there already), in weights that the network gives to the task. With the weights of `PLAIN` and
no bias, this is list scheduling by earliest finish. With Gumbel noise added to the scores, machines are drawn with the
softmax of the scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgepart.planner.placing.engine.fit_memory import allowed
from edgepart.planner.placing.engine.flat_serial import STANDINGS, FlatProblem
from edgepart.planner.placing.engine.flat_workload import Booleans, Floats, Integers
from edgepart.planner.placing.engine.judge import serial_code
from edgepart.planner.placing.guided.features import Features
from edgepart.planner.placing.problem.workload import Workload

PLAIN = (-5.0, -5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The weights with which the machine that is done first is chosen: the first two standings are about that."""


@dataclass(frozen=True)
class Decoded:
    """Placements of k samples."""

    placements: Integers
    """(k, n)."""
    start_s: Floats
    """(k, n). When each task starts if nothing overtakes what was placed before it."""
    makespan_s: Floats
    """(k,). When the last task ends then."""


@dataclass(frozen=True)
class Recorded:
    """What the scores of k samples were made of, for training."""

    standings: Floats
    """(k, n, m, STANDINGS)."""
    allowed: Booleans
    """(k, n, m). Which machines could have each task."""


class SampleDecoder:
    """Decodes placements of one workload."""

    def __init__(self, workload: Workload, features: Features) -> None:
        """Raises Infeasible if no machine can take a group of tasks that must be together."""
        flat, group = features.flat, np.array(workload.graph.group, np.int64)
        self._problem = FlatProblem(
            flat,
            # A task that costs nothing may have the same rank as its reader: the order of the graph then decides.
            flat.order[np.argsort(-features.ranks[flat.order], kind="stable")],
            allowed(workload)[group],
            group,
            np.array(workload.group_bytes, float),
            np.array([machine.memory_bytes for machine in workload.machines], float),
            features.unit_s,
        )

    def decode(self, bias: NDArray[np.floating], weights: NDArray[np.floating], noise: Floats) -> Decoded:
        """Return placements of k samples by the network's bias (n, m) and weights (n, STANDINGS), with `noise` (k, n, m)
        added to the scores."""
        return self._decode(bias, weights, noise, Recorded(np.empty((0, 0, 0, 0)), np.empty((0, 0, 0), bool)))

    def record(
        self, bias: NDArray[np.floating], weights: NDArray[np.floating], noise: Floats
    ) -> tuple[Decoded, Recorded]:
        """Return what `decode` does, and what the scores were made of."""
        kept = Recorded(np.empty((*noise.shape, STANDINGS)), np.empty(noise.shape, bool))
        return self._decode(bias, weights, noise, kept), kept

    def _decode(
        self, bias: NDArray[np.floating], weights: NDArray[np.floating], noise: Floats, kept: Recorded
    ) -> Decoded:
        scores = np.asarray(bias, np.float64), np.asarray(weights, np.float64)
        return Decoded(*serial_code().decode(self._problem, *scores, noise, kept.standings, kept.allowed))


def gumbel(samples: int, tasks: int, machines: int, seed: int) -> Floats:
    """Return noise (samples, tasks, machines): none for the first sample, which is the most likely one."""
    noise = np.random.default_rng(seed).gumbel(size=(samples, tasks, machines))
    noise[:1] = 0.0
    return noise
