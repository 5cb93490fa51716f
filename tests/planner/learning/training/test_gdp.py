"""GDP's training: rewards by hand, and that it learns, for one graph and for several."""

from __future__ import annotations

from math import inf, sqrt
from random import Random

import numpy as np
import pytest
import torch

from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.gdp import GdpSettings, GdpTraining, decide, new_network
from edgepart.planner.learning.training.gdp_network import GdpSizes
from edgepart.planner.learning.training.rewards import INVALID, Rewards
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.workloads import roomy, workload

torch.set_num_threads(1)  # More threads take longer on graphs this small.

SMALL = GdpSizes(2, width=16, rounds=1, layers=1, heads=2)
FORK = workload([(1.0, 2.0), *[(4.0, 4.0)] * 6], [(0, (1, 2, 3, 4, 5, 6), 10.0)])
"""Six equal tasks behind one: three on each machine is the best."""


def test_rewards_are_minus_the_square_root_of_the_makespan_or_minus_ten() -> None:
    tight = workload([(2.0, 4.0), (2.0, inf)], [], memory_bytes=(10.0, 6.0), task_bytes=(6.0, 6.0))
    judged = Rewards(tight).judge(np.array([[0, 0], [1, 0], [0, 1], [1, 1]]))
    assert judged.fits.tolist() == [False, True, False, False]
    assert judged.makespan_s.tolist() == [inf, 4.0, inf, inf]
    assert judged.reward.tolist() == [INVALID, pytest.approx(-sqrt(4.0 / 4.0)), INVALID, INVALID]


def test_the_unit_is_the_fastest_machine_alone() -> None:
    assert Rewards(workload([(2.0, 4.0), (2.0, 1.0)], [])).unit_s == 4.0
    assert Rewards(workload([(2.0, inf), (inf, 3.0)], [])).unit_s == 5.0


def mean_drawn(training: GdpTraining, steps: int, batch: int) -> list[float]:
    means: list[float] = []
    training.run(lambda step: step / steps, batch, lambda step, mean, spread: means.append(mean))
    return means


def drawn(seed: int) -> Workload:
    return roomy(draw_workload("inception", Random(seed), 40, 2))


def test_it_learns_on_one_graph() -> None:
    graph = drawn(0)
    training = GdpTraining([graph], new_network(SMALL, 0), 0)
    means = mean_drawn(training, 20, 1)
    assert np.mean(means[-5:]) < 0.9 * means[0]
    best = training.best[0]
    assert best.makespan_s == Rewards(graph).judge(np.array([best.placement])).makespan_s[0]
    assert best.makespan_s / Rewards(graph).unit_s < means[-1]


def test_it_learns_on_several_graphs_and_for_others() -> None:
    network = new_network(SMALL, 0)
    unseen = [drawn(seed) for seed in range(10, 14)]

    def value() -> float:
        """The mean of placements that are drawn of unseen graphs, without learning from them."""
        return mean_drawn(GdpTraining(unseen, network, 0, GdpSettings(epochs=0)), 1, 4)[0]

    before = value()
    means = mean_drawn(GdpTraining([drawn(seed) for seed in range(4)], network, 0), 12, 4)
    assert np.mean(means[-3:]) < 0.9 * means[0]
    assert value() < 0.9 * before


def test_what_does_not_fit_is_unlearned() -> None:
    tight = workload([(1.0, 2.0)] * 6, [], memory_bytes=(3.0, 6.0), task_bytes=(1.0,) * 6)
    training = GdpTraining([tight], new_network(SMALL, 0), 0)
    training.run(lambda step: step / 25, 1)
    assert not tight.short_bytes(decide(training.network, tight))


def test_the_same_seed_trains_the_same_network() -> None:
    found = []
    for seed in (0, 0, 1):
        training = GdpTraining([FORK], new_network(SMALL, seed), seed, GdpSettings(samples=8))
        training.run(lambda step: step / 3, 1)
        found.append(training.network.head.bias.tolist())
    assert found[0] == found[1] != found[2]
