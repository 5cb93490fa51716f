"""Trainers: what can train the networks of which placers, what it is asked for, and what it gives. Facts, and rules.

To add a trainer, add a module with a function `train(asked: TrainingAsked) -> Trained`, and its line to `TRAINERS`. Only
these modules import torch, when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from types import MappingProxyType

import onnx
from onnx import helper

from edgepart.planner.errors import UsageError
from edgepart.planner.placing.problem.networks import NetworkCard
from edgepart.planner.placing.problem.workload import Workload

TRAINERS: Mapping[str, str] = MappingProxyType(
    {"learned": "learned_trainer", "placeto": "placeto", "gdp": "gdp_trainer"}
)
"""The module that trains the network of each placer, by the placer's name."""

MACHINES = 4
"""The machines of drawn graphs, where nothing says how many."""


@dataclass(frozen=True)
class TrainingPoint:
    """How far a training is."""

    step: int
    """The updates so far."""
    value: float
    """What is learned to be small, as the trainer measures it."""
    entropy: float
    """The entropy of the policy, in nats: how undecided it still is."""


@dataclass(frozen=True)
class TrainingAsked:
    """What a network is to be trained on, and for how long."""

    share_over: Callable[[int], float]
    """Returns how much of the training is over after so many updates; at 1 or more it ends with what it has. The caller may
    count updates, or have a clock."""
    families: tuple[str, ...] = ()
    """The families of drawn graphs (families.py)."""
    graphs: int = 32
    """The graphs that are drawn of each family."""
    tasks: int = 140
    """The tasks of a drawn graph, roughly."""
    workloads: tuple[Workload, ...] = ()
    """Graphs to train on besides drawn ones."""
    machines: int | None = None
    """The machines of each graph. None leaves it to the workloads, or to the trainer."""
    seed: int = 0
    """What all chance comes from."""
    date: str = ""
    """The date, YYYY-MM-DD, for the card."""
    command: str = ""
    """The command, for the card."""
    tell: Callable[[TrainingPoint], None] = lambda point: None
    """Is called after each update."""

    def count_machines(self) -> int:
        """Return the machines of each graph, for a network that places on one number of them. Raises UsageError if the
        workloads differ in it, and if there is nothing to train on."""
        if not self.workloads and not self.families:
            raise UsageError("there is nothing to train on: name families of graphs, or workloads")
        counts = [len(workload.machines) for workload in self.workloads]
        found = self.machines or next(iter(counts), MACHINES)
        for workload, count in zip(self.workloads, counts, strict=True):
            if count != found:
                raise UsageError(
                    f"{workload.name} has {count} machines, and the network is to place on {found}"
                )
        return found


@dataclass(frozen=True)
class Trained:
    """A network, and what it came from."""

    network: bytes
    """An ONNX model."""
    untrained: bytes
    """The same before it was trained."""
    card: NetworkCard
    curve: tuple[TrainingPoint, ...]
    trained_on: tuple[Workload, ...]
    """The graphs that it was trained on, or some of them."""
    unseen: tuple[Workload, ...]
    """Graphs of the same kind that it was not trained on; () if there are none."""


Train = Callable[[TrainingAsked], Trained]


def trainer(placer: str) -> Train:
    """Return what trains the placer's network. Raises UsageError if nothing does, and ImportError if torch is not
    installed."""
    if placer not in TRAINERS:
        raise UsageError(f"no network of {placer!r} can be trained; there are {', '.join(TRAINERS)}")
    found: Train = import_module(f"{__package__}.{TRAINERS[placer]}").train
    return found


def stamped(network: bytes, card: NetworkCard) -> bytes:
    """Return the ONNX model with the card among its metadata, in place of any that it has."""
    model = onnx.load_from_string(network)
    helper.set_model_props(model, dict(card.metadata))
    found: bytes = model.SerializeToString()
    return found


def digest(graphs: tuple[Workload, ...]) -> str:
    """Return a digest of the graphs, the same for the same numbers and names."""
    found = sha256()
    for graph in graphs:
        found.update(repr(graph).encode())
    return found.hexdigest()[:16]
