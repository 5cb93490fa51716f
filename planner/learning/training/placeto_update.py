"""Placeto's update: REINFORCE with a baseline for each step, an entropy bonus that fades, Adam, and a bounded gradient."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from edgepart.planner.learning.training.placeto_episode import Actor, Rollout
from edgepart.planner.learning.training.placeto_network import PlacetoNetwork
from edgepart.planner.placing.engine.flat_workload import Floats

CHUNK = 4096
"""The most groups, over all states, that are differentiated at once: memory grows with them."""


@dataclass(frozen=True)
class PlacetoSettings:
    """How Placeto learns. The defaults are the authors', where not said otherwise."""

    groups: int = 128
    """The most groups of a graph."""
    workers: int = 8
    """The episodes of an update, whose gradients are averaged; the authors have 4 to 8 processes."""
    terminal: bool = False
    """Whether only the last placement is rewarded, which the paper compares with."""
    rate: tuple[float, float] = (1e-3, 1e-4)
    """Adam's step, at first and at last; linear between."""
    entropy: tuple[float, float] = (1.0, 0.01)
    """The weight of the entropy, at first and at last; linear between. The floor is ours."""
    norm: float = 1.25
    """The most that the gradient's norm may be."""
    remembered: int = 10
    """The updates on a graph whose returns are the baseline."""


def returns_of(runtimes: Floats, terminal: bool) -> Floats:
    """Return the sum of the rewards from each step on, (T, W), undiscounted, for runtimes (T + 1, W).

    A step's reward is what it takes off the runtime, or nothing, and the negated runtime for the last one."""
    before = np.zeros_like(runtimes[:-1]) if terminal else runtimes[:-1]
    found: Floats = before - runtimes[-1]
    return found


class Learner:
    """A network that learns from episodes."""

    def __init__(self, network: PlacetoNetwork, settings: PlacetoSettings) -> None:
        self._network, self._settings = network, settings
        self._adam = torch.optim.Adam(network.parameters(), lr=settings.rate[0])
        self._returns: dict[int, deque[Floats]] = {}

    def update(self, actor: Actor, played: Rollout, share: float) -> float:
        """Take a step along the gradient of these episodes; `share` is how much of the training is over. Returns the
        entropy of the policy, averaged over the states."""
        settings = self._settings
        advantages = torch.from_numpy(self._advantages(played)).float()
        weight = _between(settings.entropy, share)
        self._adam.param_groups[0]["lr"] = _between(settings.rate, share)
        self._adam.zero_grad()
        steps, workers, groups = played.states.shape[:3]
        each = max(1, CHUNK // (workers * groups))
        total = 0.0
        for first in range(0, steps, each):
            last = min(first + each, steps)
            logits = actor.logits(self._network, played.states[first:last], first, last)
            logs = logits.log_softmax(-1)
            chosen = logs.gather(-1, played.actions[first:last].unsqueeze(-1)).squeeze(-1)
            # 0 log 0 is 0: machines that are no choice add nothing.
            entropy = -(logs.exp() * logs.masked_fill(logs.isinf(), 0)).sum(-1)
            gain = advantages[first:last] * chosen + weight * entropy
            (-gain.sum() / (steps * workers)).backward()
            total += float(entropy.detach().sum())
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), settings.norm)
        self._adam.step()
        mean: float = total / (steps * workers)
        return mean

    def _advantages(self, played: Rollout) -> Floats:
        """Return (T, W): returns less the mean return at the same step of the graph's last updates, this one included, over
        their standard deviation. The latter is ours: graphs differ in how much placing is worth."""
        returns = returns_of(played.runtimes, self._settings.terminal)
        kept = self._returns.setdefault(id(played.graph), deque(maxlen=self._settings.remembered))
        kept.append(returns)
        found: Floats = returns - np.mean([one.mean(1) for one in kept], axis=0)[:, None]
        spread = float(found.std())
        return found / spread if spread > 0 else found


def _between(ends: tuple[float, float], share: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * share
