"""Placeto's episodes in training: several on one graph, step by step together, with machines that the policy draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from edgepart.planner.learning.training.placeto_network import PlacetoNetwork
from edgepart.planner.placing.engine.flat_workload import Floats, Integers
from edgepart.planner.placing.engine.judge import judge_of
from edgepart.planner.placing.guided.placeto_state import Episode, PlacetoGraph, start_alone


@dataclass(frozen=True)
class Rollout:
    """W episodes of T steps on one graph."""

    graph: PlacetoGraph
    states: torch.Tensor
    """(T, W, n, d)."""
    actions: torch.Tensor
    """(T, W). The machine of each step."""
    runtimes: Floats
    """(T + 1, W). The runtime before the first step and after each, in units of the graph's `alone_s`."""
    best: Integers
    """(n,). The best placement among all that were visited."""
    best_runtime: float


class Actor:
    """Plays episodes on one graph."""

    def __init__(self, graph: PlacetoGraph) -> None:
        self.graph = graph
        self._judge = judge_of(graph.workload, "latency")
        self.parents = torch.from_numpy(graph.parents)
        self.pools = torch.from_numpy(graph.pools[graph.order])
        """(T, 3, n), by step."""
        self.current = torch.eye(len(graph.order))[torch.from_numpy(graph.order)].unsqueeze(1)
        """(T, 1, n), by step."""
        self.barred = torch.from_numpy(~graph.able[graph.order])
        """(T, D), by step: the machines that are no choice."""

    def logits(self, network: PlacetoNetwork, states: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Return the logits (t, W, D) of the steps from `first` to before `last`, of states (t, W, n, d)."""
        steps, workers = states.shape[:2]
        around = (one[first:last].repeat_interleave(workers, dim=0) for one in (self.pools, self.current))
        found = network(states.flatten(0, 1), self.parents, *around)
        barred = self.barred[first:last].unsqueeze(1)
        return found.reshape(steps, workers, -1).masked_fill(barred, -torch.inf)

    def play(self, network: PlacetoNetwork, workers: int, generator: torch.Generator) -> Rollout:
        """Play so many episodes from the starting placement, with actions drawn from the policy."""
        episodes = [Episode(self.graph, start_alone(self.graph), self._judge) for _ in range(workers)]
        runtimes, states, actions = [[one.runtime for one in episodes]], [], []
        for step in range(len(self.graph.order)):
            state = torch.from_numpy(np.stack([one.state() for one in episodes]))
            chances = self._logits(network, state.unsqueeze(0), step)[0].softmax(-1)
            action = torch.multinomial(chances, 1, generator=generator).squeeze(1)
            for episode, machine in zip(episodes, action.tolist(), strict=True):
                episode.place(machine)
            states.append(state)
            actions.append(action)
            runtimes.append([one.runtime for one in episodes])
        best = min(episodes, key=lambda one: one.best_runtime)
        return Rollout(
            self.graph,
            torch.stack(states),
            torch.stack(actions),
            np.array(runtimes),
            best.best,
            best.best_runtime,
        )

    def answer(self, network: PlacetoNetwork) -> Episode:
        """Return the episode in which each action is the likeliest."""
        episode = Episode(self.graph, start_alone(self.graph), self._judge)
        while not episode.done:
            state = torch.from_numpy(episode.state())[None, None]
            episode.place(int(self._logits(network, state, episode.step).argmax()))
        return episode

    def _logits(self, network: PlacetoNetwork, states: torch.Tensor, step: int) -> torch.Tensor:
        """Return the logits (1, W, D) of a step, which nobody will differentiate."""
        with torch.no_grad():
            return self.logits(network, states, step, step + 1)
