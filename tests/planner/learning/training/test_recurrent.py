"""The recurrent placer: it draws what it may, learns one graph, and a seed decides everything."""

from __future__ import annotations

from random import Random

import numpy as np
import torch

from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.recurrent import (
    RecurrentNetwork,
    RecurrentSettings,
    RecurrentTraining,
    sequence,
)
from edgepart.planner.placing.engine.coarse_workload import coarsen
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.guided.placeto_state import Episode, placeto_graph
from tests.planner.placing.workloads import INF, workload

drawn = draw_workload("inception", Random(5), 60, 3)
GRAPH = placeto_graph(coarsen(drawn, contract(drawn, 12)))


def test_it_learns_to_place_a_graph() -> None:
    learning, steps = RecurrentTraining(GRAPH, RecurrentSettings(), seed=0), 50
    means = [learning.step(step / steps) for step in range(steps)]
    assert np.mean(means[-10:]) < 0.9 * np.mean(means[:10])
    assert learning.best is not None and learning.best_runtime <= min(means)
    assert Episode(GRAPH, learning.best).runtime == learning.best_runtime


def test_a_seed_decides_everything() -> None:
    def found(seed: int) -> list[float]:
        learning = RecurrentTraining(GRAPH, RecurrentSettings(), seed)
        return [learning.step(0.0) for _ in range(3)]

    assert found(1) == found(1) != found(2)


def test_machines_that_cannot_run_a_group_are_not_drawn_and_groups_move_together() -> None:
    rows: list[tuple[float, ...]] = [(1.0, INF), (INF, 1.0), (1.0, 1.0), (1.0, 1.0)]
    graph = placeto_graph(workload(rows, [(0, (2,), 1.0)], colocate=("", "", "g", "g")))
    learning = RecurrentTraining(graph, RecurrentSettings(), seed=0)
    learning.step(0.0)
    assert learning.best is not None
    assert learning.best[:2].tolist() == [0, 1] and learning.best[2] == learning.best[3]


def test_the_probability_is_that_of_what_was_drawn() -> None:
    """With weights of 0, each of two machines is as likely as the other."""
    network = RecurrentNetwork(3 + 4, 2, 8, seed=0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    groups, barred = torch.rand(4, 7), torch.zeros(4, 2, dtype=torch.bool)
    placements, logs, entropy = network(groups, barred, 5, torch.Generator().manual_seed(0))
    assert placements.shape == (4, 5)
    torch.testing.assert_close(logs, torch.full((5,), 4 * float(np.log(0.5))))
    torch.testing.assert_close(entropy, torch.tensor(float(np.log(2))))


def test_the_encoder_reads_groups_in_the_order_of_the_graph() -> None:
    read = sequence(GRAPH)
    assert read.shape == (len(GRAPH.order), 3 + len(GRAPH.order))
    assert not np.triu(read[:, 3:]).any(), "each group reads from earlier ones only"
