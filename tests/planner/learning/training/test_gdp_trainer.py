"""What `edgepart train` is given for GDP: a network that the placer can use, and graphs that it has not seen."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import onnxruntime as ort
import pytest
import torch

from edgepart.planner.errors import UsageError
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.families import HELD_OUT
from edgepart.planner.learning.training.gdp_trainer import train
from edgepart.planner.learning.training.trainers import TrainingAsked, TrainingPoint
from edgepart.planner.placing.placers.gdp import gdp
from edgepart.planner.placing.problem.networks import NeuralNetwork
from edgepart.planner.placing.problem.schedule import Asked

torch.set_num_threads(1)  # More threads take longer on graphs this small.

ASKED = TrainingAsked(lambda step: step / 2, ("inception", "unet"), graphs=2, tasks=30, machines=3)


def test_the_placer_runs_what_was_trained() -> None:
    told: list[TrainingPoint] = []
    found = train(replace(ASKED, tell=told.append))
    assert tuple(told) == found.curve and [point.step for point in told] == [1, 2]
    assert len(found.trained_on) == 4 and found.untrained != found.network
    assert {graph.name for graph in found.unseen} == {"inception", "unet", HELD_OUT}
    assert not any(graph in found.trained_on for graph in found.unseen)
    session = ort.InferenceSession(found.network, providers=["CPUExecutionProvider"])
    network = NeuralNetwork(found.card, lambda inputs: session.run(None, dict(inputs)))
    for graph in found.unseen[:2]:
        answer = gdp(graph, Asked(lambda: 0.0, networks={"gdp": network}.__getitem__))
        assert "trained on inception, unet" in answer.why and len(answer.placement) == len(graph.tasks)


def test_the_same_seed_gives_the_same_network() -> None:
    one, again, other = (train(replace(ASKED, graphs=1, seed=seed)) for seed in (0, 0, 1))
    assert one.network == again.network != other.network
    assert one.card == again.card and one.card.data_digest != other.card.data_digest


def test_workloads_have_to_have_one_number_of_machines() -> None:
    two, three = (draw_workload("branches", Random(0), 30, machines) for machines in (2, 3))
    with pytest.raises(UsageError, match="3 machines"):
        train(TrainingAsked(lambda step: 1.0, workloads=(two, three)))
    alone = train(TrainingAsked(lambda step: step / 1, workloads=(two,)))
    assert alone.card.machines == 2 and alone.card.families == ("branches",) and alone.unseen == ()
