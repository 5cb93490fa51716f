"""Placeto's training: its returns, that it learns, what a seed decides, and that its export answers as it does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgepart.agent.engines.networks import networks_of
from edgepart.planner.errors import UsageError
from edgepart.planner.learning.training.draw import draw_workload, draw_workloads
from edgepart.planner.learning.training.families import HELD_OUT
from edgepart.planner.learning.training.placeto import UNSEEN, PlacetoTraining, train
from edgepart.planner.learning.training.placeto_update import PlacetoSettings, returns_of
from edgepart.planner.learning.training.trainers import TRAINERS, TrainingAsked, stamped, trainer
from edgepart.planner.placing.engine.coarse_workload import expand
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.problem.workload import Workload

TOY = PlacetoSettings(groups=10, workers=4, entropy=(0.05, 0.0), rate=(1e-2, 1e-3))


def equal_machines(seed: int, count: int = 1) -> tuple[Workload, ...]:
    """Graphs of cells on two equal machines with much memory."""
    found = draw_workloads(["cells"] * count, Random(seed), 40, 2)
    machines = tuple(replace(machine, memory_bytes=float("inf")) for machine in found[0].machines)
    return tuple(
        replace(
            graph,
            machines=machines,
            tasks=tuple(replace(task, compute_s=task.compute_s[:1] * 2) for task in graph.tasks),
        )
        for graph in found
    )


def for_steps(steps: int, **more: object) -> TrainingAsked:
    return TrainingAsked(lambda done: done / steps, tasks=30, **more)  # type: ignore[arg-type]


@given(hnp.arrays(np.float64, st.tuples(st.integers(2, 9), st.integers(1, 4)), elements=st.floats(0.1, 20)))
def test_returns_are_sums_of_rewards(runtimes: np.ndarray) -> None:
    steps = len(runtimes) - 1
    for terminal in (False, True):
        rewards = np.zeros((steps, runtimes.shape[1])) if terminal else runtimes[:-1] - runtimes[1:]
        if terminal:
            rewards[-1] = -runtimes[-1]
        expected = [rewards[step:].sum(0) for step in range(steps)]
        np.testing.assert_allclose(returns_of(runtimes, terminal), expected, atol=1e-9)


@pytest.mark.parametrize("terminal", [False, True], ids=["each step", "the end"])
def test_it_learns_to_place_a_graph(terminal: bool) -> None:
    learning = PlacetoTraining(equal_machines(2), replace(TOY, terminal=terminal), seed=1)
    steps = 40
    ends = [float(learning.step(step / steps)[0].runtimes[-1].mean()) for step in range(steps)]
    assert np.mean(ends[-8:]) < 0.97 * np.mean(ends[:8])


def test_a_seed_decides_everything() -> None:
    asked = for_steps(2, families=("branches",), graphs=2, machines=2)
    one, same, other = (train(replace(asked, seed=seed), TOY) for seed in (1, 1, 2))
    assert one.network == same.network and one.curve == same.curve
    assert one.network != other.network and one.card.data_digest != other.card.data_digest
    assert one.network != one.untrained
    assert [point.step for point in one.curve] == [1, 2]


def test_drawn_graphs_share_a_cluster_and_others_are_kept_apart() -> None:
    trained = train(for_steps(1, families=("branches", "unet"), graphs=2, machines=3), TOY)
    assert [graph.name for graph in trained.trained_on] == ["branches"] * 2 + ["unet"] * 2
    names = [graph.name for graph in trained.unseen]
    assert names == ["branches"] * UNSEEN + ["unet"] * UNSEEN + [HELD_OUT] * UNSEEN
    everything = (*trained.trained_on, *trained.unseen)
    assert len({repr(graph.tasks) for graph in everything}) == len(everything)
    for graph in everything:
        assert (graph.machines, graph.bytes_per_s) == (everything[0].machines, everything[0].bytes_per_s)
    assert trained.card.machines == 3 and trained.card.families == ("branches", "unet")


def test_workloads_say_how_many_machines_there_are() -> None:
    pair = draw_workload("branches", Random(1), 20, 2)
    trained = train(for_steps(1, workloads=(pair,)), TOY)
    assert trained.card.machines == 2 and trained.trained_on == (pair,) and trained.unseen == ()
    three = draw_workload("branches", Random(1), 20, 3)
    with pytest.raises(UsageError, match="has 3 machines, and the network is to place on 2"):
        train(for_steps(1, workloads=(pair, three)), TOY)
    with pytest.raises(UsageError, match="nothing to train on"):
        train(for_steps(1), TOY)


def test_what_is_exported_answers_as_the_network_does(tmp_path: Path) -> None:
    graphs = draw_workloads(["inception", "attention", "unet"], Random(7), 60, 3)
    learning = PlacetoTraining(graphs, TOY, seed=4)
    for step in range(3):
        learning.step(step / 3)
    trained = train(for_steps(3, workloads=graphs, seed=4), TOY)
    path = tmp_path / "placeto.onnx"
    path.write_bytes(stamped(trained.network, trained.card))
    asked = Asked(lambda: 0.0, networks=networks_of({"placeto": path}))
    for graph, actor in zip(graphs, learning.actors, strict=True):
        answer = actor.answer(learning.network)
        where = expand(contract(graph, TOY.groups), answer.best.tolist())
        assert find(graph, "placeto", asked).placement == settle(graph, where, asked, "").placement


def test_trainers_are_found_by_name() -> None:
    assert all(callable(trainer(name)) for name in TRAINERS)
    with pytest.raises(UsageError, match="'heft'"):
        trainer("heft")
