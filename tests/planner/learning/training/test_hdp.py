"""The hierarchical placer: what groups are told as, odds by hand, and that it learns."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch

from edgepart.planner.learning.training.hdp import HdpTraining, new_hierarchical
from edgepart.planner.learning.training.hdp_network import HdpSizes, _group
from edgepart.planner.learning.training.rewards import Rewards
from tests.planner.placing.workloads import workload

torch.set_num_threads(1)  # More threads take longer on graphs this small.

SIZES = HdpSizes(2, groups=4, width=16)
CHAINS = workload(
    [(1.0, 1.0)] * 12,
    [(task, (task + 1,), 300.0) for task in range(11) if task != 5],
    bytes_per_s=100.0,
)
"""Two chains of six tasks, between which nothing goes: one on each machine is the best, 6 s."""


def test_groups_are_told_as_means_sizes_and_bytes_between() -> None:
    told = torch.tensor([[1.0], [3.0], [10.0]])
    handed = torch.tensor([[0.0, 0.25, 0.75], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    found = _group(told, handed, torch.tensor([[0, 0, 1], [2, 2, 2]]), 3)
    assert found[0].tolist() == [
        [2.0, pytest.approx(2 / 3), 0.25, 0.75, 0.0],
        [10.0, pytest.approx(1 / 3), 0.0, 0.0, 0.0],
        [0.0] * 5,
    ]
    assert found[1, 2].tolist() == [pytest.approx(14 / 3), 1.0, 0.0, 0.0, 1.0]


def test_odds_are_those_of_all_decisions() -> None:
    """With weights of 0 every group and every machine is as likely as any other."""
    network = new_hierarchical(SIZES, 0)
    with torch.no_grad():
        for one in network.parameters():
            one.zero_()
        numbers = torch.zeros(5, network.grouper[0].in_features - SIZES.op_width)
        drawn = network.draw(
            torch.zeros(5, dtype=torch.int64), numbers, torch.zeros(5, 5), 3, torch.Generator()
        )
    assert drawn.groups.shape == (3, 5) and drawn.machines.shape == (3, 4)
    assert drawn.log_odds.tolist() == pytest.approx([-5 * np.log(4) - 4 * np.log(2)] * 3)
    assert drawn.spread.item() == pytest.approx(np.log(4) + np.log(2))


def test_it_learns_on_one_graph() -> None:
    training = HdpTraining(CHAINS, new_hierarchical(SIZES, 0), 0)
    means: list[float] = []
    training.run(lambda step: step / 40, lambda step, mean: means.append(mean))
    assert np.mean(means[-5:]) < 0.9 * np.mean(means[:3])
    best = training.best
    assert best.makespan_s == Rewards(CHAINS).judge(np.array([best.placement])).makespan_s[0] <= 12.0


def test_nothing_that_fits_is_no_answer() -> None:
    short = workload([(1.0, 1.0)] * 2, [], memory_bytes=(1.0, 1.0), task_bytes=(2.0, 2.0))
    training = HdpTraining(short, new_hierarchical(SIZES, 0), 0)
    told: list[float] = []
    training.run(lambda step: step / 2, lambda step, mean: told.append(mean))
    assert told == [inf, inf] and training.best.placement == ()
