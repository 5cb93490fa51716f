"""Ground: what one operator does for a region of what it writes: work, weights, and what it reads. Operators that are the
same but for names are measured once for all searches of one study. Rules only."""

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
    """What one operator does for given regions of its outputs; the same for all operators of its kind."""

    __slots__ = ("_measure", "_work", "needs", "reads", "weight_bytes")

    def __init__(
        self,
        needs: tuple[Region | None, ...],
        reads: tuple[tuple[int, Region], ...],
        weight_bytes: float,
        measure: Callable[[], Work],
    ) -> None:
        """`needs` are of all inputs; `reads` of inputs that are no constants, those that something is read of. `measure`
        gives its work, when somebody asks for it."""
        self.needs = needs
        self.reads = reads
        self.weight_bytes = weight_bytes
        self._measure = measure
        self._work: Work | None = None

    @property
    def work(self) -> Work:
        if self._work is None:
            self._work = self._measure()
        return self._work

    def on(self, device: Device) -> float:
        """Seconds."""
        work = self.work
        return work.on(device) if work.flops or work.nbytes else 0.0


class OperatorCosts:
    """Measures what operators do for regions, each piece once, so that the declarations need no memory of their own."""

    def __init__(self, coarse: Coarse, cost: Cost) -> None:
        self.graph = coarse.graph
        self.coarse = coarse
        self.cost = cost
        self.accesses = coarse.declared
        self._kinds: dict[str, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._pieces: dict[Hashable, OperatorCost] = {}

    @cached_property
    def reaches(self) -> tuple[SearchNode, ...]:
        """The nodes of a layer-wise search, for all searches of one study."""
        return find_search_nodes(self.coarse, self.cost.free)

    def piece(self, op: Operator, outputs: tuple[tuple[int, Region], ...]) -> OperatorCost:
        """Of `op`, for regions of its outputs by index."""
        key = self._kinds.get(op.name) or self.kind(op), outputs
        found = self._pieces.get(key)
        if found is None:
            found = self._pieces[key] = self._measured(op, dict(outputs))
        return found

    def kind(self, op: Operator) -> int:
        """Equal for operators of which all pieces are the same; counted from 1."""
        family = self.coarse.accesses[op.name].family
        around = op.name in self.cost.free, describe_surroundings(self.graph, op, family)
        kind = self.coarse.kinds[op.name], around
        self._kinds[op.name] = found = self._numbers.setdefault(kind, len(self._numbers) + 1)
        return found

    def _measured(self, op: Operator, outputs: Outputs) -> OperatorCost:
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
