"""A recurrent placer, as a baseline: reads all groups of a graph in a sequence, and gives each a machine in a second one.

After Mirhoseini et al. (ColocRL, 2017), which Placeto's authors compare with: an LSTM encodes the groups, another decodes
their machines with attention to all of them, and REINFORCE with a moving average of the rewards as baseline learns, for one
graph; it knows no other. Our sources leave the sizes and rates open: those of `RecurrentSettings` are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import nn

from edgepart.planner.placing.engine.flat_workload import Integers
from edgepart.planner.placing.engine.judge import judge_of
from edgepart.planner.placing.guided.placeto_state import Episode, PlacetoGraph, Singles

# The products are so small that threads would only wait for each other.
torch.set_num_threads(1)


@dataclass(frozen=True)
class RecurrentSettings:
    """The numbers of the network and of its training."""

    hidden: int = 64
    """The width of both LSTMs."""
    samples: int = 32
    """The placements that are drawn for an update."""
    rate: float = 1e-2
    """Adam's step."""
    norm: float = 1.0
    """The most that the gradient's norm may be."""
    kept: float = 0.9
    """What the moving average keeps of itself at an update."""
    entropy: float = 0.01
    """The weight of the entropy at first; it falls to 0, linearly."""


def sequence(graph: PlacetoGraph) -> Singles:
    """Return what the encoder reads, (n, 3 + n), in the order of the graph: seconds, bytes out and bytes kept, each divided
    by its maximum, and the groups that a group reads from."""
    parents = graph.parents[np.ix_(graph.order, graph.order)]
    return np.concatenate([graph.fixed[graph.order], parents], axis=1)


class RecurrentNetwork(nn.Module):
    """Draws machines for a sequence of groups."""

    def __init__(self, width: int, machines: int, hidden: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = nn.LSTM(width, hidden)
            self.decoder = nn.LSTMCell(hidden + machines, hidden)
            self.ask = nn.Linear(hidden, hidden)
            self.decide = nn.Linear(2 * hidden, machines)

    def forward(
        self, groups: torch.Tensor, barred: torch.Tensor, samples: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return so many drawn placements (n, s), the logarithm of each one's probability (s,), and the entropy, averaged
        over groups and placements. `groups` is (n, width), and `barred` (n, D) says which machines are no choice."""
        encoded, (state, cell) = self.encoder(groups)
        state, cell = (one.expand(samples, -1) for one in (state, cell))
        last = torch.zeros(samples, barred.shape[1])
        drawn, logs, entropies = [], [], []
        for group, none in zip(encoded, barred, strict=True):
            read = torch.cat([group.expand(samples, -1), last], dim=1)
            state, cell = self.decoder(read, (state, cell))
            heard = (self.ask(state) @ encoded.T / sqrt(encoded.shape[1])).softmax(-1) @ encoded
            chances = (
                self.decide(torch.cat([state, heard], dim=1)).masked_fill(none, -torch.inf).log_softmax(-1)
            )
            chosen = torch.multinomial(chances.detach().exp(), 1, generator=generator)
            drawn.append(chosen[:, 0])
            logs.append(chances.gather(1, chosen)[:, 0])
            entropies.append(-(chances.exp() * chances.masked_fill(none, 0)).sum(-1).mean())
            last = nn.functional.one_hot(chosen[:, 0], barred.shape[1]).float()
        return torch.stack(drawn), torch.stack(logs).sum(0), torch.stack(entropies).mean()


class RecurrentTraining:
    """A network while it learns to place one graph."""

    def __init__(self, graph: PlacetoGraph, settings: RecurrentSettings, seed: int) -> None:
        self.best: Integers | None = None
        self.best_runtime = float("inf")
        self._graph, self._settings = graph, settings
        self._groups = torch.from_numpy(sequence(graph))
        self._barred = torch.from_numpy(~graph.able[graph.order])
        self._network = RecurrentNetwork(self._groups.shape[1], graph.machines, settings.hidden, seed)
        self._adam = torch.optim.Adam(self._network.parameters(), lr=settings.rate)
        self._generator = torch.Generator().manual_seed(seed)
        self._judge = judge_of(graph.workload, "latency")
        self._average: float | None = None

    def step(self, share: float) -> float:
        """Draw placements and learn from them; `share` is how much of the training is over. Returns their mean runtime, in
        units of the graph's `alone_s`."""
        settings = self._settings
        drawn, logs, entropy = self._network(self._groups, self._barred, settings.samples, self._generator)
        runtimes = [self._runtime(placement) for placement in drawn.T.numpy()]
        rewards = -np.sqrt(runtimes)
        average = float(rewards.mean())
        if self._average is not None:
            average = settings.kept * self._average + (1 - settings.kept) * average
        self._average = average
        gain = (torch.from_numpy(rewards - average).float() * logs).mean()
        self._adam.zero_grad()
        (-gain - (1 - share) * settings.entropy * entropy).backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), settings.norm)
        self._adam.step()
        return float(np.mean(runtimes))

    def _runtime(self, placement: Integers) -> float:
        """Judge machines by the graph's order."""
        where = np.empty(len(placement), np.int64)
        for group, machine in zip(self._graph.order, placement, strict=True):
            where[list(self._graph.together[group])] = machine
        runtime = Episode(self._graph, where, self._judge).runtime
        if runtime < self.best_runtime:
            self.best, self.best_runtime = where, runtime
        return runtime
