"""What `edgepart train` makes a network of GDP by: one network for all graphs that it is given. Rules only.

With one workload and no families this is GDP-one, with several GDP-batch. Each drawn graph is on a cluster of its
own, as the network is told how fast machines are."""

from __future__ import annotations

from random import Random

from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.families import HELD_OUT
from edgepart.planner.learning.training.gdp import GdpTraining, new_network
from edgepart.planner.learning.training.gdp_export import export_gdp
from edgepart.planner.learning.training.gdp_network import GdpSizes
from edgepart.planner.learning.training.trainers import Trained, TrainingAsked, TrainingPoint, digest
from edgepart.planner.placing.problem.networks import NetworkCard
from edgepart.planner.placing.problem.workload import Workload

BATCH = 8
"""The most graphs of a step."""

UNSEEN = 8
"""The graphs of each family that are drawn for a comparison."""


def train(asked: TrainingAsked) -> Trained:
    """Train a network on the workloads and on drawn graphs. Raises UsageError if there is nothing to train on or if
    workloads have other numbers of machines."""
    machines = asked.count_machines()
    drawn, unseen = _draw_graphs(asked, machines)
    graphs = asked.workloads + drawn
    training = GdpTraining(graphs, new_network(GdpSizes(machines), asked.seed), asked.seed)
    untrained = export_gdp(training.network, graphs[0])
    curve: list[TrainingPoint] = []

    def tell(step: int, mean: float, entropy: float) -> None:
        curve.append(TrainingPoint(step + 1, mean, entropy))
        asked.tell(curve[-1])

    training.run(asked.share_over, min(BATCH, len(graphs)), tell)
    card = NetworkCard(
        "gdp",
        machines,
        (*asked.families, *(workload.name for workload in asked.workloads)),
        asked.seed,
        digest(graphs),
        asked.date,
        asked.command,
    )
    return Trained(export_gdp(training.network, graphs[0]), untrained, card, tuple(curve), graphs, unseen)


def _draw_graphs(asked: TrainingAsked, machines: int) -> tuple[tuple[Workload, ...], tuple[Workload, ...]]:
    """Return drawn graphs to train on, and others: of the same families, and of the one that nothing is trained on unless
    it is asked for."""
    if not asked.families:
        return (), ()

    def draw(family: str, which: str) -> Workload:
        return draw_workload(family, Random(f"gdp {asked.seed} {family} {which}"), asked.tasks, machines)

    kept = tuple(draw(family, f"kept {n}") for n in range(asked.graphs) for family in asked.families)
    apart = dict.fromkeys((*asked.families, HELD_OUT))
    return kept, tuple(draw(family, f"unseen {n}") for family in apart for n in range(UNSEEN))
