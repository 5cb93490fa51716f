"""The seconds of a step of training under the paper's model (its equation 1), made from the tables of our search.

The product serves inference, which has no backward passes and no parameters to synchronise; the paper's findings
follow from both. Here they are added to the tables, so that the same search can be asked the paper's question:

- t_C: the forward pass, and a backward pass of twice its work;
- t_S: each device that holds a copy of weights sends its gradients to a parameter server, which is one of these
  devices, and gets the weights back changed. Devices that have different channels hold different weights;
- t_X: what moves forward moves back as a gradient.

How much of what moves passes at the same time, and whether gradients of inputs count, the paper leaves open: `READINGS`.

Only the paper's configurations are compared: none that divides sums, and none that repeats a layer on several devices.
Inputs and outputs of the model are brought nowhere, as the paper's sum has no term for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layers.search_nodes import SearchNode
from edgepart.planner.layerwise.configurations import is_on_one_device, make_space
from edgepart.planner.layerwise.elimination import Edge, Solution, Table, cost_of, minimise
from edgepart.planner.layerwise.links import Links
from edgepart.planner.layerwise.time_costs import LayerwiseProblem, TimeCosts
from edgepart.planner.layout.choices import Choice, Divide, Whole
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.owt import is_dense

PASSES = 3
"""The work of a step of training, as a multiple of the forward pass."""

AxisOf = Callable[[Layer], str]
Takes = Callable[[SearchNode, Choice], bool]


class ApartLinks(Links):
    """Each pair of devices has a link of its own, and all of them carry at the same time."""

    def seconds(self, moved: Table) -> Table:
        found: Table = (moved * self._byte_s).max((-2, -1))
        return found


class SingleLink(Links):
    """One transfer at a time: bytes over bandwidth, added up."""

    def seconds(self, moved: Table) -> Table:
        found: Table = (moved * self._byte_s).sum((-2, -1))
        return found


@dataclass(frozen=True)
class Reading:
    """A reading of the paper's t_X and t_S."""

    passes: str
    """What passes at the same time, in words."""
    links: type[Links]
    directions: int
    """2 if the gradients of what moves count as well, which move back; 1 if only inputs do, as the text has it."""


READINGS = tuple(
    Reading(passes, links, directions)
    for passes, links in (
        ("one transfer for each device and direction", Links),
        ("all transfers, on links of their own", ApartLinks),
        ("one transfer", SingleLink),
    )
    for directions in (2, 1)
)
"""Ours first: its links are those of our simulator."""


@dataclass(frozen=True)
class TrainingStep:
    """The search for the configurations under which a step costs least."""

    study: Study
    problem: LayerwiseProblem
    """The search for inference, over all configurations, which has the same nodes."""
    choices: Sequence[Sequence[Choice]]
    """The paper's configurations of each node."""
    compute: Sequence[Table]
    """t_C of each node, [configuration]."""
    unary: Sequence[Table]
    """t_C + t_S of each node, [configuration]."""
    edges: Sequence[Edge]
    """t_X of each tensor between two nodes, [writer's configuration, reader's]."""

    def solve(self) -> Solution:
        return minimise(self.unary, self.edges)

    def least_s(self, takes: Takes) -> float:
        """Seconds of the best step of those whose nodes have configurations that `takes` admits."""
        kept = [
            [n for n, choice in enumerate(choices) if takes(node, choice)]
            for node, choices in zip(self.problem.nodes, self.choices, strict=True)
        ]
        unary = [table[rows] for table, rows in zip(self.unary, kept, strict=True)]
        return minimise(unary, [(a, b, table[np.ix_(kept[a], kept[b])]) for a, b, table in self.edges]).cost

    def choices_of(self, found: Solution) -> Mapping[str, Choice]:
        """The configuration of each layer, by the name of its main operator."""
        named = zip(self.problem.nodes, self.choices, found.choice, strict=True)
        return {node.layer.anchor.name: choices[n] for node, choices, n in named if not node.is_junction}

    def seconds_along(self, axis_of: AxisOf) -> float:
        """Seconds if each layer is divided over all devices along the axis that `axis_of` names, or is whole on
        the first device if it has no such axis."""
        names = self.study.memo.by_speed
        taken = []
        for node, choices in zip(self.problem.nodes, self.choices, strict=True):
            axes = (axis_of(node.layer),)
            along = (
                n
                for n, choice in enumerate(choices)
                if isinstance(choice, Divide) and choice.axes == axes and len(choice.shares) == len(names)
            )
            taken.append(next(along, choices.index(Whole(names[:1]))))
        return cost_of(self.unary, self.edges, taken)


def make_step(study: Study, reading: Reading = READINGS[0]) -> TrainingStep:
    """A step of training of the study's model on its devices."""
    costs = TimeCosts(study.memo, make_space(study.memo, whole=True))
    costs.links = reading.links(study.memo)
    problem = costs.build_problem()
    kept = [
        [n for n, choice in enumerate(choices) if isinstance(choice, Divide) or is_on_one_device(choice)]
        for choices in problem.choices
    ]
    each = list(zip(problem.nodes, kept, strict=True))
    compute = [PASSES * costs.configurations_of(node).seconds[rows] for node, rows in each]
    synchronising = [_synchronising_s(costs, node)[rows] for node, rows in each]
    unary = [one + other for one, other in zip(compute, synchronising, strict=True)]
    edges = [(a, b, reading.directions * table[np.ix_(kept[a], kept[b])]) for a, b, table in problem.edges]
    choices = [[choices[n] for n in rows] for choices, rows in zip(problem.choices, kept, strict=True)]
    return TrainingStep(study, problem, choices, compute, unary, edges)


def _synchronising_s(costs: TimeCosts, node: SearchNode) -> Table:
    """t_S, [configuration]."""
    one = costs.configurations_of(node)
    places = {device.name: n for n, device in enumerate(costs.devices)}
    gradients = np.zeros((len(one.choices), len(places), len(places)))
    for n, choice in enumerate(one.choices):
        for server, *others in _copies(choice) if isinstance(choice, Divide) else ():
            for other in others:
                gradients[n, places[other], places[server]] = one.weight_bytes[n, places[other]]
    # The way back takes as long, as links are equal in both directions.
    found: Table = 2 * costs.links.seconds(gradients)
    return found


def _copies(choice: Divide) -> Iterator[list[str]]:
    """Yields the groups of devices that hold the same weights, the parameter server first."""
    groups: dict[int, list[str]] = {}
    for n, (name, _) in enumerate(choice.shares):
        place = np.unravel_index(n, choice.grid or (len(choice.shares),))
        channel = int(place[choice.axes.index("channel")]) if "channel" in choice.axes else 0
        groups.setdefault(channel, []).append(name)
    yield from groups.values()


def baselines(study: Study) -> Mapping[str, AxisOf]:
    """The axis of each layer under the paper's baselines."""
    return {
        "data": lambda layer: "batch",
        "model": lambda layer: "channel",
        "owt": lambda layer: "channel" if is_dense(study.memo, layer) else "batch",
    }
