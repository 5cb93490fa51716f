"""Training of `learned`: a network that starts as list scheduling, learns, and is the same in ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from random import Random

import numpy as np
import onnxruntime as ort
import pytest
import torch

from edgepart.planner.errors import UsageError
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.families import FAMILIES, HELD_OUT
from edgepart.planner.learning.training.guide import Guide, as_tensors, log_likelihood
from edgepart.planner.learning.training.learned import LearnedTraining
from edgepart.planner.learning.training.learned_trainer import export_guide, train
from edgepart.planner.learning.training.lessons import (
    Lesson,
    best_climbed,
    draw_lessons,
    make_lesson,
    values_of,
)
from edgepart.planner.learning.training.trainers import TrainingAsked, TrainingPoint
from edgepart.planner.placing.engine.dispatch import dispatch
from edgepart.planner.placing.engine.judge import prepare
from edgepart.planner.placing.guided.decode import PLAIN, gumbel
from tests.planner.placing.workloads import workload

prepare()  # As the command does; without numba, training is slow.
torch.set_num_threads(1)  # More threads take longer on graphs this small.

ASKED = TrainingAsked(lambda step: step / 3, ("inception", "cells"), tasks=30, machines=3)


def mean_value(network: Guide, lesson: Lesson) -> float:
    """The mean makespan of what the network draws, in units of plain list scheduling."""
    with torch.no_grad():
        bias, weights = (one.numpy() for one in network(**as_tensors(lesson.features.inputs)))
    tasks, machines = lesson.shape
    plain = lesson.decoder.decode(
        np.zeros((tasks, machines)), np.tile(PLAIN, (tasks, 1)), np.zeros((1, tasks, machines))
    )
    drawn = lesson.decoder.decode(bias, weights, gumbel(100, tasks, machines, seed=9)[1:])
    return float(values_of(lesson, drawn).mean() / plain.makespan_s[0])


def test_before_it_is_trained_a_network_is_plain_list_scheduling() -> None:
    lesson = make_lesson(draw_workload("cells", Random(1), 40, 3))
    bias, weights = Guide()(**as_tensors(lesson.features.inputs))
    assert (bias == 0).all() and (weights == torch.tensor(PLAIN)).all()


def test_reinforcement_learns_one_graph() -> None:
    # The first task of each pair is done first on the first machine, from where its bytes take long to the second task.
    pairs: list[tuple[int, tuple[int, ...], float]] = [(2 * n, (2 * n + 1,), 2000.0) for n in range(3)]
    lesson = make_lesson(workload([(1.0, 1.1), (50.0, 1.0)] * 3, pairs))
    training = LearnedTraining(repeat(lesson), seed=0, share_over=lambda step: 0.2 + step / 30)
    before = mean_value(training.network, lesson)
    assert len(list(training.reinforce())) == 24
    assert mean_value(training.network, lesson) < 0.97 * before


def test_imitation_learns_a_placement() -> None:
    lesson = make_lesson(draw_workload("inception", Random(2), 30, 3))
    drawn = lesson.decoder.decode(
        np.zeros(lesson.shape), np.tile(PLAIN, (lesson.shape[0], 1)), gumbel(8, *lesson.shape, 0)
    )
    where = best_climbed(lesson, drawn, seed=0, looks=200)
    assert where is not None
    made = dispatch(lesson.workload, where.tolist())
    assert made.makespan_s <= 1.05 * values_of(lesson, drawn).min()
    training = LearnedTraining(repeat(lesson), seed=0, share_over=lambda step: step / 100)
    losses = [loss for loss, _ in training.imitate([(lesson, where)])]
    assert len(losses) == 18 and losses[-1] < 0.7 * losses[0]


def test_what_fits_nowhere_gets_no_label_and_counts_as_worst() -> None:
    lesson = make_lesson(
        workload([(1.0, 1.0)] * 3, [], memory_bytes=(10.0, 11.0), task_bytes=(8.0, 8.0, 8.0))
    )
    drawn = lesson.decoder.decode(np.zeros((3, 2)), np.tile(PLAIN, (3, 1)), gumbel(4, 3, 2, 0))
    assert (values_of(lesson, drawn) == np.inf).all()
    assert best_climbed(lesson, drawn, seed=0, looks=10) is None


def test_likelihoods_are_those_of_the_softmax() -> None:
    bias, weights = torch.tensor([[0.0, 1.0, 5.0]]), torch.zeros((1, 8))
    allowed = torch.tensor([[[True, True, False]]])
    found, entropy = log_likelihood((bias, weights), torch.zeros((1, 1, 3, 8)), allowed, torch.tensor([[1]]))
    share = np.exp(1) / (1 + np.exp(1))
    assert float(found[0]) == pytest.approx(np.log(share), abs=1e-5)
    assert float(entropy) == pytest.approx(-share * np.log(share) - (1 - share) * np.log(1 - share), abs=1e-5)


def test_lessons_are_the_same_for_the_same_seed() -> None:
    one, again = (draw_lessons(Random(3), ("cells", "unet"), (20, 40), (2, 4)) for _ in range(2))
    assert all(next(one).workload == next(again).workload for _ in range(3))


def test_onnx_runtime_computes_what_torch_does_for_other_graphs_and_clusters() -> None:
    network = Guide()
    for last in (network.asks, network.pair_bias, network.weights):
        torch.nn.init.normal_(last.weight)
    made = export_guide(network, make_lesson(draw_workload("inception", Random(0), 30, 3)))
    assert len(made) <= 1_000_000
    session = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
    for family, tasks, machines in (("cells", 60, 12), ("sequence", 20, 1)):
        inputs = make_lesson(draw_workload(family, Random(1), tasks, machines)).features.inputs
        with torch.no_grad():
            expected = network(**as_tensors(inputs))
        for found, one in zip(session.run(None, inputs), expected, strict=True):
            assert np.abs(found - one.numpy()).max() <= 1e-4 * max(1.0, float(one.abs().max()))


def test_what_edgepart_train_is_given() -> None:
    told: list[TrainingPoint] = []
    found = train(replace(ASKED, tell=told.append))
    assert found.card.placer == "learned" and found.card.machines == 0
    assert tuple(told) == found.curve and found.curve and found.network != found.untrained
    assert {graph.name for graph in found.unseen} == {"inception", HELD_OUT}
    assert not any(graph in found.trained_on for graph in found.unseen)
    again, other = train(ASKED), train(replace(ASKED, seed=1))
    assert again.network == found.network != other.network
    assert again.card == found.card and other.card.data_digest != found.card.data_digest


def test_it_trains_on_workloads_of_any_numbers_of_machines_and_on_nothing_else() -> None:
    graphs = tuple(draw_workload("branches", Random(0), 30, machines) for machines in (2, 3))
    found = train(TrainingAsked(lambda step: step / 2, workloads=graphs))
    assert all(graph in found.trained_on for graph in graphs) and found.unseen == ()
    assert all(graph in graphs for graph in found.trained_on)
    with pytest.raises(UsageError, match="nothing to train on"):
        train(TrainingAsked(lambda step: 1.0))


def test_the_family_that_is_kept_apart_exists() -> None:
    assert HELD_OUT in FAMILIES
