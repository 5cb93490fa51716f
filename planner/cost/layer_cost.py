"""Layer cost: the work of one device for its part of a layer.

Takes a node of a layer-wise search and the regions of the layer's exits that a device holds; gives the work
(from which seconds on any device follow), the bytes of weights, and the regions that the device reads of each
tensor. For a layer that is parted along a reduced axis, it gives the cost of the addends and of combining
them instead (`PartialSumCosts`). The level below is operator_cost.py: the cost of a layer is the sum over its
operators, walked from readers to writers. The level above is planner/layerwise/configuration_cost.py, which
combines the devices of one configuration. Rules only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgepart.planner.access.declare.bound import numpy_dtype
from edgepart.planner.access.declare.protocol import Access, Outputs
from edgepart.planner.cost.cost import Work
from edgepart.planner.cost.operator_cost import OperatorCost, OperatorCosts
from edgepart.planner.cost.work import work_of
from edgepart.planner.devices.cluster import Device
from edgepart.planner.layers.search_nodes import SearchNode
from edgepart.planner.layout.choices import compact
from edgepart.planner.layout.partial_sums import find_reduced_axis
from edgepart.planner.model.graph import Operator
from edgepart.planner.region import Interval, Region

ExitRegions = tuple[Region | None, ...]
"""The region of each of a layer's exits that one device holds; None for nothing."""


@dataclass(frozen=True)
class LayerCost:
    """The work of one device for given regions of a layer's exits."""

    works: tuple[OperatorCost | Work, ...] = ()
    weight_bytes: float = 0.0
    reads: Mapping[str, Region] = field(default_factory=dict)
    """The region that the device reads of each tensor, including tensors that its own operators pass to one another."""

    def seconds_on(self, device: Device) -> float:
        """Seconds that the work takes on `device`."""
        return sum([work.seconds_on(device) for work in self.works])

    def __add__(self, other: LayerCost) -> LayerCost:
        """The cost of both on one device."""
        reads = dict(self.reads)
        unite(reads, other.reads.items())
        return LayerCost(self.works + other.works, self.weight_bytes + other.weight_bytes, reads)


def unite(reads: dict[str, Region], more: Iterable[tuple[str, Region]]) -> None:
    """Adds `more` to `reads`, as one region for each tensor."""
    for name, region in more:
        before = reads.get(name)
        reads[name] = region if before is None or before == region else before.union_spans(region)


class LayerCosts:
    """Measures one node of a layer-wise search; each combination of regions is measured once."""

    def __init__(self, operator_costs: OperatorCosts, node: SearchNode) -> None:
        self._operator_costs = operator_costs
        self._node = node
        self._costs: dict[tuple[ExitRegions, str | None], LayerCost] = {}

    def cost_of(self, exit_regions: ExitRegions, without: str | None = None) -> LayerCost:
        """The cost of a device that holds `exit_regions`; without the operator `without` and the operators
        that only it reads."""
        key = (exit_regions, without)
        found = self._costs.get(key)
        if found is None:
            exits = self._node.exits
            named = {
                n: r for n, r in zip(exits, exit_regions, strict=True) if r is not None and not r.is_empty
            }
            builder = _LayerCostBuilder(self._operator_costs)
            builder.walk(self._node.operators, exits, named, without)
            found = self._costs[key] = builder.build()
        return found


@dataclass
class _LayerCostBuilder:
    """Builds a layer cost, to which operators are added."""

    operator_costs: OperatorCosts
    works: list[OperatorCost | Work] = field(default_factory=list)
    weight_bytes: float = 0.0
    reads: dict[str, Region] = field(default_factory=dict)

    def walk(
        self,
        operators: Sequence[Operator],
        exits: Sequence[str],
        exit_regions: Mapping[str, Region],
        without: str | None = None,
    ) -> None:
        """Adds, from readers to writers, the operators that write `exit_regions`, and the operators that
        write what these read."""
        for op in operators:
            outputs = tuple(self._outputs(op, exits, exit_regions))
            if outputs and op.name != without:
                self.compute(op, outputs)

    def _outputs(
        self, op: Operator, exits: Sequence[str], exit_regions: Mapping[str, Region]
    ) -> Iterator[tuple[int, Region]]:
        for index, name in enumerate(op.outputs):
            if name in exits:
                if name in exit_regions:
                    yield index, exit_regions[name]
            elif name in self.reads:
                region = self.reads[name]
                yield index, region if region.is_box else compact(region)

    def compute(self, op: Operator, outputs: tuple[tuple[int, Region], ...]) -> None:
        """Adds one operator that writes regions of its outputs."""
        cost = self.operator_costs.cost_of(op, outputs)
        self.works.append(cost)
        self.weight_bytes += cost.weight_bytes
        inputs = op.inputs
        unite(self.reads, [(inputs[index], region) for index, region in cost.reads])
        if op.captured:
            self.read((name, self.operator_costs.graph.region_of(name)) for name in op.captured)

    def read(self, pairs: Iterable[tuple[str, Region | None]]) -> None:
        """Adds regions that are read of tensors and constants."""
        constants = self.operator_costs.graph.constants
        for name, region in pairs:
            if region is None or not name:
                continue
            if name in constants:
                self.weight_bytes += region.size * self.operator_costs.cost.item_bytes(name)
            elif not region.is_empty:
                unite(self.reads, ((name, region),))

    def build(self) -> LayerCost:
        """The cost of everything that was added."""
        return LayerCost(tuple(self.works), self.weight_bytes, self.reads)


Addends = dict[int, Region]
"""The region of each addend, by the addend's number."""


class PartialSumCosts:
    """Measures an operator that is parted along a reduced axis: each device makes addends, and some devices
    combine them."""

    def __init__(
        self,
        operator_costs: OperatorCosts,
        node: SearchNode,
        op: Operator,
        axis: str,
        parts: Sequence[tuple[int, Interval]],
    ) -> None:
        """`op` is the parted operator of `node`; `parts` has the place of each device and the interval that
        it sums over."""
        access = operator_costs.accesses[op.name]
        self._operator_costs = operator_costs
        self.item_bytes = operator_costs.cost.item_bytes
        self.op = op
        self.places = tuple(place for place, _ in parts)
        self.reduction = access.reduction(find_reduced_axis(op, access, axis))
        place = next(n for n, one in enumerate(node.operators) if one.name == op.name)
        self._behind = node.operators[place + 1 :]
        self._exits = node.exits
        self._makes = {place: self.reduction.part(one) for place, one in parts}
        self._combines = self.reduction.combine(tuple(one for _, one in parts))
        self._combining = replace(op, inputs=tuple(self._inputs()))
        self._making = replace(
            op, outputs=tuple(f"{self._name}.{k}" for k in range(len(self.reduction.addends)))
        )
        self._combined: dict[Region, tuple[LayerCost, dict[int, Addends]]] = {}
        self._made: dict[tuple[int, tuple[tuple[int, Region], ...]], LayerCost] = {}

    @property
    def _name(self) -> str:
        """The prefix of the names of addends, which are not in the graph."""
        return f"{self.op.outputs[0]}#"

    def _inputs(self) -> Iterator[str]:
        """Yields the names of the tensors that are combined: the addends of each part, and inputs that are
        read again."""
        for n in range(len(self.places)):
            yield from (f"{self._name}{n}.{k}" for k in range(len(self.reduction.addends)))
        yield from (self.op.inputs[index] for index in self.reduction.again)

    def combine(self, region: Region) -> tuple[LayerCost, dict[int, Addends]]:
        """The cost of making `region` out of addends, and the addends that are needed, by the place that makes them."""
        if region not in self._combined:
            self._combined[region] = self._combine(region)
        return self._combined[region]

    def make(self, place: int, wanted: Addends) -> LayerCost:
        """The cost of making the addends `wanted` at a place."""
        key = (place, tuple(wanted.items()))
        if key not in self._made:
            self._made[key] = self._make(self._makes[place], wanted)
        return self._made[key]

    def addend_bytes(self, addends: Addends) -> float:
        """Bytes of addends."""
        kinds = self.reduction.addends
        return sum(float(r.size * numpy_dtype(kinds[k].dtype).itemsize) for k, r in addends.items())

    def _combine(self, region: Region) -> tuple[LayerCost, dict[int, Addends]]:
        needs, each = self._combines.needs({0: region}), len(self.reduction.addends)
        wanted = {
            place: {k: r for k, r in enumerate(needs[n * each : (n + 1) * each]) if r is not None}
            for n, place in enumerate(self.places)
        }
        again = _LayerCostBuilder(self._operator_costs)
        inputs = (self.op.inputs[index] for index in self.reduction.again)
        again.read(zip(inputs, needs[each * len(self.places) :], strict=True))
        again.works.append(self._work(self._combining, self._combines, needs, {0: region}))
        again.walk(self._behind, self._exits, {})
        return again.build(), wanted

    def _make(self, access: Access, wanted: Addends) -> LayerCost:
        found = _LayerCostBuilder(self._operator_costs)
        needs = access.needs(wanted)
        found.read(zip(self.op.inputs, needs, strict=False))
        found.works.append(self._work(self._making, access, needs, wanted))
        found.walk(self._behind, self._exits, {})
        return found.build()

    def _work(self, op: Operator, access: Access, needs: Sequence[Region | None], outputs: Outputs) -> Work:
        """The work of one part, or of combining, as it is lowered (planner/layout/partial_sums.py)."""
        reads = [
            (name, region, region.size * self._item_bytes(name))
            for name, region in zip(op.inputs, needs, strict=False)
            if name and region is not None
        ]
        writes = [(region, region.size * self._item_bytes(op.outputs[k])) for k, region in outputs.items()]
        return work_of(self._operator_costs.graph, op, access.family, access.flops(outputs), reads, writes)

    def _item_bytes(self, name: str) -> float:
        if name.startswith(self._name):
            kind = self.reduction.addends[int(name.rpartition(".")[2])]
            return float(numpy_dtype(kind.dtype).itemsize)
        return self.item_bytes(name)
