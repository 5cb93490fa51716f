"""Placeto's training: one policy for all graphs of a family, or for one graph, by episodes in simulation.

Each update plays some episodes on one graph, and the graphs take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random

import torch

from edgepart.planner.learning.training.draw import draw_workloads
from edgepart.planner.learning.training.families import HELD_OUT
from edgepart.planner.learning.training.placeto_episode import Actor, Rollout
from edgepart.planner.learning.training.placeto_network import PlacetoNetwork, export
from edgepart.planner.learning.training.placeto_update import Learner, PlacetoSettings
from edgepart.planner.learning.training.trainers import Trained, TrainingAsked, TrainingPoint, digest
from edgepart.planner.placing.engine.coarse_workload import coarsen
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.guided.placeto_state import placeto_graph, width
from edgepart.planner.placing.problem.networks import NetworkCard
from edgepart.planner.placing.problem.workload import Workload

UNSEEN = 8
"""The graphs of each family that are drawn for a comparison."""

Graphs = tuple[Workload, ...]


def train(asked: TrainingAsked, settings: PlacetoSettings | None = None) -> Trained:
    """Train a network on the workloads and on drawn graphs, all of these on one cluster: the network does not see how fast
    machines are, and has to learn it. Raises UsageError if there is nothing to train on or if workloads have other
    numbers of machines, and Infeasible if no machine can take a group."""
    settings = settings or PlacetoSettings()
    machines = asked.count_machines()
    drawn, unseen = draw_graphs(asked, machines)
    graphs = asked.workloads + drawn
    learning = PlacetoTraining(graphs, settings, asked.seed)
    card = NetworkCard(
        "placeto",
        machines,
        (*asked.families, *(workload.name for workload in asked.workloads)),
        asked.seed,
        digest(graphs),
        asked.date,
        asked.command,
        options={"groups": settings.groups},
    )
    untrained = export(learning.network)
    curve: list[TrainingPoint] = []
    for step in count():
        share = asked.share_over(step)
        if share >= 1:
            break
        played, entropy = learning.step(share)
        curve.append(TrainingPoint(step + 1, float(played.runtimes[-1].mean()), entropy))
        asked.tell(curve[-1])
    return Trained(export(learning.network), untrained, card, tuple(curve), graphs, unseen)


def draw_graphs(asked: TrainingAsked, machines: int) -> tuple[Graphs, Graphs]:
    """Return drawn graphs to train on, and others on the same cluster: of the same families, and of the one that nothing is
    trained on unless it is asked for."""
    if not asked.families:
        return (), ()
    kept = [family for family in asked.families for _ in range(asked.graphs)]
    apart = [family for family in dict.fromkeys((*asked.families, HELD_OUT)) for _ in range(UNSEEN)]
    found = draw_workloads([*kept, *apart], Random(f"placeto {asked.seed}"), asked.tasks, machines)
    return found[: len(kept)], found[len(kept) :]


class PlacetoTraining:
    """A network while it learns on graphs, which are contracted to groups."""

    def __init__(self, graphs: Sequence[Workload], settings: PlacetoSettings, seed: int) -> None:
        """Raises Infeasible if no machine can take a group of some graph."""
        machines = len(graphs[0].machines)
        self.network = PlacetoNetwork(width(machines), machines, seed)
        self.actors = [
            Actor(placeto_graph(coarsen(graph, contract(graph, settings.groups)))) for graph in graphs
        ]
        self._settings = settings
        self._learner = Learner(self.network, settings)
        self._generator = torch.Generator().manual_seed(seed)
        self._turn = 0

    def step(self, share: float) -> tuple[Rollout, float]:
        """Play episodes on the next graph and learn from them; `share` is how much of the training is over. Returns the
        episodes, and the entropy of the policy in nats."""
        actor = self.actors[self._turn % len(self.actors)]
        self._turn += 1
        played = actor.play(self.network, self._settings.workers, self._generator)
        return played, self._learner.update(actor, played, share)
