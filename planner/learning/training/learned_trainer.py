"""What `edgepart train` makes the network of `learned` by. Rules only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from random import Random

from edgepart.planner.errors import UsageError
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.families import HELD_OUT
from edgepart.planner.learning.training.guide import Guide, as_tensors
from edgepart.planner.learning.training.learned import LearnedTraining
from edgepart.planner.learning.training.lessons import Lesson, draw_lessons, make_lesson
from edgepart.planner.learning.training.onnx_export import export_network
from edgepart.planner.learning.training.trainers import Trained, TrainingAsked, TrainingPoint, digest
from edgepart.planner.placing.problem.networks import NetworkCard
from edgepart.planner.placing.problem.workload import Workload

MACHINES = (2, 6)
"""The least and the most machines of a drawn graph, where nothing says how many."""

UNSEEN = 8
"""The graphs of each family that are drawn for a comparison."""

NAMED = 32
"""The most graphs that are named as those that it was trained on."""

AXES = {
    **{key: {0: "n"} for key in ("tasks", "before", "behind", "weights")},
    "machines": {0: "m"},
    **{key: {0: "n", 1: "m"} for key in ("pairs", "bias")},
}
"""The axes of the network's inputs and outputs that may have any length: n tasks and m machines."""


def train(asked: TrainingAsked) -> Trained:
    """Train a network on the workloads and on drawn graphs, which are drawn anew as long as there is time. Raises
    UsageError if there is nothing to train on, and Infeasible if a workload fits on no machines."""
    if not asked.workloads and not asked.families:
        raise UsageError("there is nothing to train on: name families of graphs, or workloads")
    lessons = _lessons(asked)
    first = next(lessons)
    training = LearnedTraining(chain([first], lessons), asked.seed, asked.share_over)
    untrained = export_guide(training.network, first)
    curve: list[TrainingPoint] = []
    for step, (loss, entropy) in enumerate(training.run()):
        curve.append(TrainingPoint(step + 1, loss, entropy))
        asked.tell(curve[-1])
    graphs = tuple(lesson.workload for lesson in training.pool)
    card = NetworkCard(
        "learned",
        0,
        (*asked.families, *(workload.name for workload in asked.workloads)),
        asked.seed,
        digest(graphs),
        asked.date,
        asked.command,
    )
    network = export_guide(training.network, first)
    return Trained(network, untrained, card, tuple(curve), graphs[:NAMED], _draw_unseen(asked))


def export_guide(network: Guide, example: Lesson) -> bytes:
    """Return the network as an ONNX model, for any numbers of tasks and machines."""
    return export_network(network, as_tensors(example.features.inputs), ("bias", "weights"), AXES)


def _lessons(asked: TrainingAsked) -> Iterator[Lesson]:
    """Yield the workloads in turn with drawn graphs, or again and again if no families are asked for."""
    given = [make_lesson(workload) for workload in asked.workloads]
    if not asked.families:
        yield from chain.from_iterable(repeat(given))
    random = Random(f"lessons {asked.seed}")
    sizes = (max(1, 2 * asked.tasks // 7), 15 * asked.tasks // 7)
    drawn = draw_lessons(random, asked.families, sizes, (asked.machines,) * 2 if asked.machines else MACHINES)
    while True:
        yield from given
        yield next(drawn)


def _draw_unseen(asked: TrainingAsked) -> tuple[Workload, ...]:
    """Return graphs of the same families, and of the one that nothing is trained on unless it is asked for."""
    if not asked.families:
        return ()
    random = Random(f"unseen {asked.seed}")
    least, most = (asked.machines,) * 2 if asked.machines else MACHINES
    return tuple(
        draw_workload(family, random, asked.tasks, random.randint(least, most))
        for family in dict.fromkeys((*asked.families, HELD_OUT))
        for _ in range(UNSEEN)
    )
