"""Memo: the facts about one problem on its devices, each computed once and remembered.

It answers the questions that strategies ask about the model and the cluster: layers, costs, speeds, places to
cut, memory limits. It knows nothing of candidates (candidates.py) or of their predicted results (scorer.py).
Rules only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from edgepart.planner.cost.chain_cost import ChainCosts
from edgepart.planner.cost.cost import Cost, Profiles
from edgepart.planner.cost.layer_cost import LayerCosts
from edgepart.planner.cost.operator_cost import OperatorCosts
from edgepart.planner.errors import UsageError
from edgepart.planner.layers.coarsen import Coarse, Layer, coarsen
from edgepart.planner.layers.search_nodes import SearchNode
from edgepart.planner.layout.choices import Shares
from edgepart.planner.layout.propagate import LayoutPropagator
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import Lowering
from edgepart.planner.plans.reduced_precision import EXACT, smallest_share
from edgepart.planner.region import Region

T = TypeVar("T")


@dataclass(frozen=True)
class CutPoint:
    """A position between operators where no layer is half computed."""

    position: int
    """The index of the last operator before the cut."""
    last: str
    """The name of the last operator before the cut."""
    crossing: frozenset[str]
    """Exits that are written before the cut and read after it."""
    seconds: float
    """Seconds that the fastest device takes to compute everything before the cut."""


class Memo:
    """One problem, and the facts about it that strategies need."""

    def __init__(self, problem: Problem, profiles: Profiles | None = None) -> None:
        """`profiles` are measured seconds of segments. Raises UsageError for an unknown objective or gateway."""
        cluster = problem.cluster.with_engines(exact=problem.transfer_dtype == EXACT)
        self.problem = problem = problem if cluster is problem.cluster else replace(problem, cluster=cluster)
        self.graph = problem.graph
        self.cluster = problem.cluster
        self.cost = Cost(problem.cluster, problem.graph, profiles or {})
        if problem.objective not in ("latency", "throughput"):
            raise UsageError(f"objective {problem.objective!r}: choose 'latency' or 'throughput'")
        problem.cluster.device(problem.gateway)
        self._seconds: dict[str, Mapping[str, float]] = {}
        self._made: dict[Callable[[Memo], Any], Any] = {}
        self._layer_costs: dict[int, LayerCosts] = {}
        """The costs of each search node, by the number of its layer."""

    def on(self, problem: Problem) -> Memo:
        """A memo of another problem about the same graph, for example with another cluster or other memory
        limits. The two share everything that depends on the graph alone."""
        other = Memo(problem, self.cost.profiles)
        other._layer_costs = self._layer_costs
        shared = ("coarse", "propagator", "operator_costs", "chain_costs")
        other.__dict__.update({name: getattr(self, name) for name in shared})  # Fills the cached properties.
        return other

    def once(self, make: Callable[[Memo], T]) -> T:
        """The result of `make` for this memo; `make` is called once."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast(T, self._made[make])

    # The model.

    @cached_property
    def coarse(self) -> Coarse:
        """The graph's layers."""
        return coarsen(self.graph, self.problem.layer_of)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that need a choice: those that have exits."""
        return tuple(layer for layer in self.coarse.layers if layer.exits)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """Axes along which at least one layer can be divided, the most frequent first."""
        count: dict[str, int] = {}
        for layer in self.layers:
            for axis in layer.axes:
                if layer.splits(axis.name):
                    count[axis.name] = count.get(axis.name, 0) + 1
        return tuple(sorted(count, key=lambda name: (-count[name], name)))

    @cached_property
    def position(self) -> Mapping[str, int]:
        """The index of each operator in the graph."""
        return {op.name: index for index, op in enumerate(self.graph.operators)}

    @cached_property
    def last_position(self) -> Mapping[int, int]:
        """The index of the last operator of each layer that has exits, by the layer's number."""
        return {layer.number: max(self.position[op.name] for op in layer.operators) for layer in self.layers}

    @cached_property
    def cut_points(self) -> tuple[CutPoint, ...]:
        """Every place that no layer straddles, in the model's order."""
        return tuple(_find_cut_points(self))

    # Tools that candidates are computed with; each remembers what candidates have in common.

    @cached_property
    def propagator(self) -> LayoutPropagator:
        """Derives layouts from choices."""
        return LayoutPropagator(self.coarse)

    @cached_property
    def operator_costs(self) -> OperatorCosts:
        """The work of operators for given regions."""
        return OperatorCosts(self.coarse, self.cost)

    @cached_property
    def chain_costs(self) -> ChainCosts:
        """The work of chains of operators for given regions."""
        return ChainCosts(self.coarse, self.operator_costs)

    def layer_costs_of(self, node: SearchNode) -> LayerCosts:
        """The work of devices for their parts of one node of a layer-wise search."""
        found = self._layer_costs.get(node.layer.number)
        if found is None:
            found = self._layer_costs[node.layer.number] = LayerCosts(self.operator_costs, node)
        return found

    @cached_property
    def lowering(self) -> Lowering:
        """Lowers strategies to plans."""
        return Lowering(self.problem, self.cost, self.coarse.accesses)

    # The devices.

    def limit_bytes(self, device: str) -> float:
        """Bytes of memory that a plan may use on `device`."""
        own = self.cluster.device(device).memory_bytes
        return min(own, self.problem.memory_limit_bytes.get(device, own))

    def seconds_on(self, device: str) -> Mapping[str, float]:
        """The seconds that each whole operator takes on `device`."""
        found = self._seconds.get(device)
        if found is None:
            by_name, accesses = self.graph.by_name, self.coarse.accesses
            found = self._seconds[device] = {
                name: self.cost.compute_s(by_name[name], accesses[name], full, device)
                for name, full in self._full_outputs.items()
            }
        return found

    @cached_property
    def _full_outputs(self) -> Mapping[str, dict[int, Region]]:
        """The full region of each output, by operator and index of the output."""
        tensors = self.graph.tensors
        return {
            op.name: {i: tensors[n].region for i, n in enumerate(op.outputs) if n}
            for op in self.graph.operators
        }

    @cached_property
    def chain_s(self) -> Mapping[str, Mapping[str, float]]:
        """The seconds that each whole operator or chain takes, by device and by the name of the operator or
        of the chain's last one."""
        members = {chain[-1].name: [op.name for op in chain] for chain in self.chain_costs.chains}
        found: dict[str, Mapping[str, float]] = {}
        for device in self.whole_s:
            each = self.seconds_on(device)
            found[device] = {**each, **{n: sum(each[op] for op in ops) for n, ops in members.items()}}
        return found

    @cached_property
    def whole_s(self) -> Mapping[str, float]:
        """The seconds that the whole model takes on each device."""
        return {
            device.name: self.cost.segment_s(device.name) + sum(self.seconds_on(device.name).values())
            for device in self.cluster.devices
        }

    @cached_property
    def by_speed(self) -> tuple[str, ...]:
        """Devices, fastest first; the gateway comes first among equals."""
        return tuple(
            sorted(self.whole_s, key=lambda name: (self.whole_s[name], name != self.problem.gateway))
        )

    @cached_property
    def fastest_s(self) -> Mapping[str, float]:
        """The seconds that each whole operator takes on the fastest device."""
        return self.seconds_on(self.by_speed[0])

    def shares(self, devices: Iterable[str]) -> Shares:
        """The devices with shares in proportion to the speed at which each computes the whole model."""
        return tuple((name, 1 / self.whole_s[name]) for name in devices)

    def travel_bytes(self, name: str) -> float:
        """The fewest bytes per element of a tensor on its way between devices."""
        share = smallest_share(self.graph.tensors.get(name), self.problem.transfer_dtype)
        return self.cost.item_bytes(name) * share


def _find_cut_points(memo: Memo) -> Iterator[CutPoint]:
    """Yields the cut points in one pass over the model: a layer is open between its first and its last operator."""
    coarse, operators = memo.coarse, memo.graph.operators
    last_read = _find_last_reads(memo)
    ends = {end: number for number, end in memo.last_position.items()}
    open_layers: set[int] = set()
    alive: set[str] = set()
    seconds = 0.0
    for index, op in enumerate(operators):
        seconds += memo.fastest_s[op.name]
        if not coarse.is_pulled(op):
            open_layers.add(coarse.layer_of[op.name])
        number = ends.get(index)
        if number is None:
            continue
        open_layers.discard(number)
        alive = {n for n in (*alive, *coarse.layers[number].exits) if last_read[n] > index}
        if not open_layers and alive:
            yield CutPoint(index, op.name, frozenset(alive), seconds)


def _find_last_reads(memo: Memo) -> dict[str, int]:
    """The index of the last operator that reads each tensor. A reader that is left to its own readers counts
    at their positions."""
    coarse, graph, last = memo.coarse, memo.graph, dict[str, int]()
    for op in reversed(graph.operators):
        for name in filter(None, op.outputs):
            last[name] = memo.position[op.name]
            for reader in graph.consumers[name]:
                reads = [memo.position[reader.name]]
                if coarse.is_pulled(reader):
                    reads = [last[n] for n in reader.outputs if n]
                last[name] = max([last[name], *reads])
    return last
