"""GDP's training: proximal policy optimisation over one graph, or over several at once. Rules only.

From the source (GDP, 2019, as a lecture of March 2020 presents it): the reward (rewards.py), PPO, and that the
objective is the mean over graphs, J = 1/N sum over G of E[r_G]. A network is trained for one graph alone (GDP-one),
for several (GDP-batch), or for several and then for one more (fine-tuning); the answer for a graph is the best
placement that was found.

The source leaves open what is ours: the numbers of `GdpSettings`, and the advantage, which is the reward less the mean of
the graph's samples, over their standard deviation. As the machines of all nodes are drawn independently, the
clipped ratio is that of each node: the product of hundreds would be clipped after one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from edgepart.planner.learning.training.gdp_network import GdpNetwork, GdpSizes
from edgepart.planner.learning.training.rewards import BestDrawn, Judgement, Rewards
from edgepart.planner.placing.engine.flat_workload import Integers
from edgepart.planner.placing.guided.gdp_features import GdpFeatures, features_of, joined
from edgepart.planner.placing.problem.workload import Workload


@dataclass(frozen=True)
class GdpSettings:
    """The numbers of the training; all are ours."""

    samples: int = 32
    """Placements drawn of each graph in a step."""
    epochs: int = 4
    """How often a step's samples are learned from."""
    clip: float = 0.2
    """How far, in proportion, a node's probability may move in a step."""
    entropy: float = 0.01
    last_entropy: float = 0.001
    """The weight of the entropy in the first step and in the last; linear between."""
    learning_rate: float = 1e-3
    most_norm: float = 1.0
    """The norm to which gradients are cut."""


def new_network(sizes: GdpSizes, seed: int) -> GdpNetwork:
    """Return an untrained network; the same one for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GdpNetwork(sizes)


def tensors_of(features: GdpFeatures) -> dict[str, Tensor]:
    """Return the network's inputs, by name."""
    return {name: torch.as_tensor(array) for name, array in features.inputs().items()}


class GdpTraining:
    """Trains a network on workloads that all have its number of machines."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        network: GdpNetwork,
        seed: int,
        settings: GdpSettings | None = None,
    ) -> None:
        self.network = network
        self._settings = settings or GdpSettings()
        self._features = [features_of(workload) for workload in workloads]
        self._rewards = [Rewards(workload) for workload in workloads]
        self.best = [BestDrawn() for _ in workloads]
        """For each workload, the best placement that was drawn of it."""
        self._generator = torch.Generator().manual_seed(seed)
        self._adam = torch.optim.Adam(network.parameters(), lr=self._settings.learning_rate)

    def run(
        self,
        share_over: Callable[[int], float],
        batch: int,
        tell: Callable[[int, float, float], None] = lambda step, mean, spread: None,
    ) -> None:
        """Take steps until `share_over`, of the steps that were taken, is 1: the share of the training that is over.
        Each step is on a batch of the workloads; all of them come up equally often.

        `tell` gets the number of each step, the mean of its drawn makespans that fit, in units of the fastest machine
        alone, and the mean entropy of a task's decision, in nats."""
        first, last = self._settings.entropy, self._settings.last_entropy
        turns: list[int] = []
        step = 0
        while (share := share_over(step)) < 1:
            if len(turns) < batch:
                turns += torch.randperm(len(self._features), generator=self._generator).tolist()
            which, turns = turns[:batch], turns[batch:]
            mean, spread = self._step(sorted(set(which)), first + (last - first) * share)
            tell(step, mean, spread)
            step += 1

    def _step(self, which: Sequence[int], entropy: float) -> tuple[float, float]:
        """Draw placements of these workloads and learn from them. Return the mean of their makespans, in units, and the
        mean entropy that they were drawn with."""
        features = joined([self._features[number] for number in which])
        inputs = tensors_of(features)
        with torch.no_grad():
            before = torch.log_softmax(self.network(**inputs), 1)
        drawn = torch.multinomial(before.exp(), self._settings.samples, True, generator=self._generator)
        advantage = torch.zeros(drawn.shape)
        weight = torch.zeros(len(drawn))
        means = []
        for place, number in enumerate(which):
            judged = self._judge(number, features.placements(drawn.numpy().T, place))
            rows = torch.as_tensor(np.unique(features.rows[place]))
            advantage[rows] = torch.as_tensor(judged.advantage(), dtype=torch.float32)
            weight[rows] = 1.0 / (len(rows) * len(which))
            fitting = judged.makespan_s[judged.fits]
            means.append(float(fitting.mean()) / self._rewards[number].unit_s if len(fitting) else inf)
        for _ in range(self._settings.epochs):
            self._learn(inputs, before, drawn, advantage, weight, entropy)
        return float(np.mean(means)), float((weight * _entropy(before)).sum())

    def _judge(self, number: int, placements: Integers) -> Judgement:
        """Judge placements of a workload, and keep the best one."""
        judged = self._rewards[number].judge(placements)
        self.best[number] = self.best[number].or_better(placements, judged)
        return judged

    def _learn(
        self,
        inputs: dict[str, Tensor],
        before: Tensor,
        drawn: Tensor,
        advantage: Tensor,
        weight: Tensor,
        entropy: float,
    ) -> None:
        """Take one step of Adam. before: (r, d), the logarithms of the odds that placements were drawn by; drawn and
        advantage: (r, b); weight: (r,), what each row counts, 1 in all."""
        clip = self._settings.clip
        now = torch.log_softmax(self.network(**inputs), 1)
        ratio = (now.gather(1, drawn) - before.gather(1, drawn)).exp()
        gained = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean(1)
        loss = -(weight * (gained + entropy * _entropy(now))).sum()
        self._adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self._settings.most_norm)
        self._adam.step()


def _entropy(odds: Tensor) -> Tensor:
    """Return the entropy of each row's decision, (r,), for the logarithms of its odds, (r, d)."""
    return -(odds.exp() * odds).sum(1)


def decide(network: GdpNetwork, workload: Workload) -> tuple[int, ...]:
    """Return the placement that the network finds the likeliest: the answer without any search."""
    features = features_of(workload)
    with torch.no_grad():
        columns = network(**tensors_of(features)).argmax(1).numpy()
    return tuple(features.placements(columns).tolist())
