"""Operator cost: the work of one operator to write given regions of its outputs.

Takes an operator and regions; gives its work (floating-point operations and bytes, from which seconds on any
device follow), the bytes of weights that it needs, and the regions that it reads of its inputs. Operators
that are the same except for names are measured once. The level below is work.py, which turns regions into
work. The levels above are chain_cost.py and layer_cost.py. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property, partial

from edgepart.planner.access.declare.protocol import Outputs
from edgepart.planner.cost.cost import Cost, Work
from edgepart.planner.cost.work import describe_surroundings
from edgepart.planner.devices.cluster import Device
from edgepart.planner.layers.coarsen import Coarse
from edgepart.planner.layers.search_nodes import SearchNode, find_search_nodes
from edgepart.planner.model.graph import Operator
from edgepart.planner.region import Region


class OperatorCost:
    """The cost of one operator to write given regions of its outputs; the same for all operators of its kind."""

    __slots__ = ("_measure", "_work", "needs", "reads", "weight_bytes")

    def __init__(
        self,
        needs: tuple[Region | None, ...],
        reads: tuple[tuple[int, Region], ...],
        weight_bytes: float,
        measure: Callable[[], Work],
    ) -> None:
        """`needs` has the region that is read of each input, None for inputs that are not read. `reads` has,
        by index, the regions of inputs that are not constants and of which something is read. `measure`
        computes the work when it is first needed."""
        self.needs = needs
        self.reads = reads
        self.weight_bytes = weight_bytes
        self._measure = measure
        self._work: Work | None = None

    @property
    def work(self) -> Work:
        """The operations and bytes that the operator computes and moves, on any device."""
        if self._work is None:
            self._work = self._measure()
        return self._work

    def seconds_on(self, device: Device) -> float:
        """Seconds that the operator takes on `device`."""
        work = self.work
        return work.seconds_on(device) if work.flops or work.nbytes else 0.0


class OperatorCosts:
    """Measures the operators of a graph; each combination of regions is measured once."""

    def __init__(self, coarse: Coarse, cost: Cost) -> None:
        self.graph = coarse.graph
        self.coarse = coarse
        self.cost = cost
        self.accesses = coarse.declared
        self._kinds: dict[str, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._costs: dict[Hashable, OperatorCost] = {}

    @cached_property
    def search_nodes(self) -> tuple[SearchNode, ...]:
        """The nodes of a layer-wise search."""
        return find_search_nodes(self.coarse, self.cost.free)

    def cost_of(self, op: Operator, outputs: tuple[tuple[int, Region], ...]) -> OperatorCost:
        """The cost of `op` for regions of its outputs, each with the output's index."""
        key = self._kinds.get(op.name) or self.kind_of(op), outputs
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = self._measure(op, dict(outputs))
        return found

    def kind_of(self, op: Operator) -> int:
        """A number from 1 on, equal for operators whose costs are the same for equal regions."""
        family = self.coarse.accesses[op.name].family
        surroundings = op.name in self.cost.free, describe_surroundings(self.graph, op, family)
        kind = self.coarse.kinds[op.name], surroundings
        self._kinds[op.name] = found = self._numbers.setdefault(kind, len(self._numbers) + 1)
        return found

    def _measure(self, op: Operator, outputs: Outputs) -> OperatorCost:
        graph, cost, access = self.graph, self.cost, self.accesses[op.name]
        needs = tuple(access.needs(outputs))
        reads: list[tuple[int, Region]] = []
        weight_bytes = 0.0
        for index, (name, region) in enumerate(zip(op.inputs, needs, strict=True)):
            if region is None or not name:
                continue
            if name in graph.constants:
                weight_bytes += region.size * cost.item_bytes(name)
            elif not region.is_empty:
                reads.append((index, region))
        return OperatorCost(
            needs, tuple(reads), weight_bytes, partial(cost.measure, op, access, outputs, needs)
        )
