"""Training of the network of `learned`: imitation of climbed placements, then reinforcement. Ours. Rules only.

For imitation, each graph gets a label: what climbing finds from the best of drawn samples and of everything on one
machine. For reinforcement, placements are drawn by the network, and each becomes more or less likely as it is
better or worse than the mean of its graph (REINFORCE, with the samples of one graph as each other's baseline).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgepart.planner.learning.training.guide import Guide, as_tensors, log_likelihood
from edgepart.planner.learning.training.lessons import Lesson, best_climbed, values_of
from edgepart.planner.placing.engine.flat_workload import Floats, Integers
from edgepart.planner.placing.guided.decode import Decoded, Recorded, gumbel

SAMPLES = 32
"""The placements that are drawn for each graph and step of reinforcement."""

POOL = 3000
"""The most graphs that are kept. Once there are so many, reinforcement takes them again, as drawing and describing a graph
takes as long as a step of learning."""

BATCH = 8
"""The graphs of one update."""

LABELLED, IMITATED = 0.10, 0.18
"""How much of a training is over when labels are made, and when these are imitated."""

LOOKS = 1500
"""The steps of climbing for each label, about a tenth of a second for 140 tasks."""

RATE, LEAST_RATE = 1e-3, 2e-5
"""Adam's rate of learning while labels are imitated, and at the end of reinforcement, which begins with half of the
first."""

ENTROPY = 0.003
"""The weight of the entropy of choices at the beginning of reinforcement; it falls to 0."""

Label = tuple[Lesson, Integers]
"""A graph and a good placement (n,) of it."""


class LearnedTraining:
    """Trains one network, the same one for the same seed, lessons and shares. Each part of it is an iterator that
    learns while it is asked for more, until so much of the training is over as `share_over` says of the number of
    graphs that were learned from."""

    def __init__(self, lessons: Iterator[Lesson], seed: int, share_over: Callable[[int], float]) -> None:
        torch.manual_seed(seed)
        self.network = Guide()
        self.graphs = 0
        """The graphs that were learned from, counted each time."""
        self._share_over, self._lessons = share_over, lessons
        self._random = Random(f"learned {seed}")
        self._optimiser = torch.optim.Adam(self.network.parameters(), RATE)
        self._pool: list[Lesson] = []
        self._batch: list[tuple[float, float]] = []
        """The losses and entropies of the graphs since the last update."""

    @property
    def pool(self) -> Sequence[Lesson]:
        """The graphs that it was trained on, or the first of them."""
        return self._pool

    def run(self) -> Iterator[tuple[float, float]]:
        """Learn; yield the mean loss of each update's graphs, and the mean entropy of the choices on them, in nats."""
        yield from self.imitate(self._make_labels())
        yield from self.reinforce()

    def _make_labels(self) -> list[Label]:
        found: list[Label] = []
        while self._share_over(self.graphs // BATCH) < LABELLED:
            lesson = self._next()
            with torch.no_grad():
                scores = _arrays(self._scores(lesson))
            drawn = lesson.decoder.decode(*scores, gumbel(SAMPLES, *lesson.shape, self.graphs))
            where = best_climbed(lesson, drawn, seed=self.graphs, looks=LOOKS)
            self.graphs += 1
            if where is not None:
                found.append((lesson, where))
        return found

    def imitate(self, labels: Sequence[Label]) -> Iterator[tuple[float, float]]:
        """Learn to place graphs as their labels have it."""
        self._set_rate(RATE)
        while labels and self._share_over(self.graphs // BATCH) < IMITATED:
            lesson, where = self._random.choice(labels)
            tasks, machines = lesson.shape
            forced = np.zeros((1, tasks, machines))
            forced[0, np.arange(tasks), where] = np.inf
            scores = self._scores(lesson)
            decoded, recorded = lesson.decoder.record(*_arrays(scores), forced)
            likely, entropy = _likelihood(scores, decoded, recorded)
            yield from self._learn(-likely.mean() / tasks, entropy)

    def reinforce(self) -> Iterator[tuple[float, float]]:
        """Learn from what the network draws."""
        while (over := self._share_over(self.graphs // BATCH)) < 1:
            left = min(1.0, (1 - over) / (1 - IMITATED))
            self._set_rate(RATE / 2 * left + LEAST_RATE * (1 - left))
            lesson = self._next()
            scores = self._scores(lesson)
            noise = gumbel(SAMPLES, *lesson.shape, self.graphs)
            decoded, recorded = lesson.decoder.record(*_arrays(scores), noise)
            advantage = _advantages(values_of(lesson, decoded))
            likely, entropy = _likelihood(scores, decoded, recorded)
            loss = -(torch.as_tensor(advantage) * likely).mean() / lesson.shape[0] ** 0.5
            yield from self._learn(loss - ENTROPY * left * entropy, entropy)

    def _next(self) -> Lesson:
        """Return a new graph, or one of the pool once that is full."""
        if len(self._pool) == POOL:
            return self._random.choice(self._pool)
        self._pool.append(next(self._lessons))
        return self._pool[-1]

    def _scores(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        bias, weights = self.network(**as_tensors(lesson.features.inputs))
        return bias, weights

    def _set_rate(self, rate: float) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = rate

    def _learn(self, loss: Tensor, entropy: Tensor) -> Iterator[tuple[float, float]]:
        """Add the gradient of a graph's loss; update the network once there are those of a batch, and say how they were."""
        (loss / BATCH).backward()
        self.graphs += 1
        self._batch.append((float(loss.detach()), float(entropy.detach())))
        if len(self._batch) == BATCH:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self._optimiser.step()
            self._optimiser.zero_grad()
            losses, entropies = zip(*self._batch, strict=True)
            self._batch = []
            yield fmean(losses), fmean(entropies)


def _arrays(scores: tuple[Tensor, Tensor]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    bias, weights = (one.detach().numpy() for one in scores)
    return bias, weights


def _likelihood(scores: tuple[Tensor, Tensor], decoded: Decoded, recorded: Recorded) -> tuple[Tensor, Tensor]:
    """Return the logarithm of how likely each placement was (k,), and the mean entropy of the choices."""
    standings = torch.as_tensor(recorded.standings, dtype=torch.float32)
    placements = torch.as_tensor(decoded.placements)
    return log_likelihood(scores, standings, torch.as_tensor(recorded.allowed), placements)


def _advantages(values_s: Floats) -> NDArray[np.float32]:
    """Return by how much each placement is better than the mean of its graph, in standard deviations. A placement
    that does not fit is as bad as twice the worst that does."""
    fits = np.isfinite(values_s)
    if not fits.any():
        return np.zeros(len(values_s), np.float32)
    gains = -np.log(np.where(fits, values_s, 2 * values_s[fits].max()))
    # Without the constant, noise of rounding would count as much as a real difference.
    return np.asarray((gains - gains.mean()) / (gains.std() + 0.01), np.float32)
