"""The training of a hierarchical placer, as GDP is compared with (HDP): REINFORCE for one graph. Rules only.

Grouper and placer are trained together, by the reward of the whole placement, which is GDP's (rewards.py). Ours are the
numbers of `HdpSettings`, and the baseline: the mean of the step's rewards, over whose standard deviation gains are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
import torch

from edgepart.planner.learning.training.hdp_network import Drawn, HdpNetwork, HdpSizes
from edgepart.planner.learning.training.rewards import BestDrawn, Rewards
from edgepart.planner.placing.guided.gdp_features import features_of
from edgepart.planner.placing.problem.workload import Workload


@dataclass(frozen=True)
class HdpSettings:
    """The numbers of the training; all are ours."""

    samples: int = 32
    """Placements drawn in a step."""
    entropy: float = 0.01
    last_entropy: float = 0.001
    """The weight of the entropy in the first step and in the last; linear between."""
    learning_rate: float = 3e-3
    most_norm: float = 1.0


def new_hierarchical(sizes: HdpSizes, seed: int) -> HdpNetwork:
    """Return an untrained network; the same one for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HdpNetwork(sizes)


class HdpTraining:
    """Trains a network on one workload of its number of machines."""

    def __init__(
        self, workload: Workload, network: HdpNetwork, seed: int, settings: HdpSettings | None = None
    ) -> None:
        self.network = network
        self.best = BestDrawn()
        """The best placement that was drawn."""
        self._settings = settings or HdpSettings()
        self._rewards = Rewards(workload)
        features = features_of(workload)
        count = len(workload.tasks)
        self._ops = torch.as_tensor(features.ops[:count])
        self._numbers = torch.as_tensor(features.numbers[:count])
        self._rows, self._columns = features.rows[0], features.machines[0]
        self._handed = _handed(workload)
        self._generator = torch.Generator().manual_seed(seed)
        self._adam = torch.optim.Adam(network.parameters(), lr=self._settings.learning_rate)

    def run(
        self,
        share_over: Callable[[int], float],
        tell: Callable[[int, float], None] = lambda step, mean: None,
    ) -> None:
        """Take steps until `share_over`, of the steps that were taken, is 1: the share of the training that is over.
        `tell` gets the number of each, and the mean of its drawn makespans that fit, in units of the fastest machine
        alone."""
        first, last = self._settings.entropy, self._settings.last_entropy
        step = 0
        while (share := share_over(step)) < 1:
            tell(step, self._step(first + (last - first) * share))
            step += 1

    def _step(self, entropy: float) -> float:
        drawn = self.network.draw(
            self._ops, self._numbers, self._handed, self._settings.samples, self._generator
        )
        columns = drawn.machines.gather(1, drawn.groups).numpy()
        placements = self._columns[columns[:, self._rows]]
        judged = self._rewards.judge(placements)
        self.best = self.best.or_better(placements, judged)
        self._learn(drawn, judged.advantage(), entropy)
        fitting = judged.makespan_s[judged.fits]
        return float(fitting.mean()) / self._rewards.unit_s if len(fitting) else inf

    def _learn(self, drawn: Drawn, advantage: np.ndarray, entropy: float) -> None:
        gain = torch.as_tensor(advantage, dtype=torch.float32) * drawn.log_odds / drawn.groups.shape[1]
        loss = -(gain.mean() + entropy * drawn.spread)
        self._adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self._settings.most_norm)
        self._adam.step()


def _handed(workload: Workload) -> torch.Tensor:
    """Return the share of all bytes that each row hands to each other row, (n, n), with rows as tasks in topological
    order."""
    row = {task: number for number, task in enumerate(workload.order)}
    found = torch.zeros(len(row), len(row))
    for tensor in workload.tensors:
        for reader in tensor.readers:
            found[row[tensor.source], row[reader]] += tensor.nbytes
    return found / found.sum().clamp(min=1.0)
