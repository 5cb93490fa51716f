"""Chain cost: the work of a chain of operators that always run together, for a given region.

Takes a chain and a region of the tensor that its last operator writes; gives the regions that the chain reads
and, on a device, seconds. The level below is operator_cost.py: the cost of a chain is the sum over its
operators, followed from the last to the first. A search simulates hundreds of candidates; to be quick, it
treats each chain as one operator.

Each operator of a chain reads the one before it and constants, and no other operator reads the tensors
between them (planner/layers/chains.py). So a chain runs on one device, in one segment and at one time,
whatever a strategy chooses: a sketch in which each chain is one operator has the same segments, messages and
seconds. Only the memory that a device needs inside a chain is missing from the sketch;
`ChainCosts.inner_bytes` is an upper bound on it. Rules only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edgepart.planner.access.declare.protocol import Access, Axis, Local, Outputs, Reduction
from edgepart.planner.cost.cost import Cost
from edgepart.planner.cost.memory import OPERATOR_BYTES
from edgepart.planner.cost.operator_cost import OperatorCost, OperatorCosts
from edgepart.planner.devices.cluster import Device
from edgepart.planner.devices.engine import CPU, Engine
from edgepart.planner.errors import InternalError
from edgepart.planner.layers.chains import find_chains, output_of
from edgepart.planner.layers.coarsen import Coarse
from edgepart.planner.layout.choices import compact
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Region


@dataclass(frozen=True, slots=True)
class ChainCost:
    """The work of a chain to write one region."""

    needs: tuple[Region | None, ...]
    """The region that is read of each input of the chain."""
    operators: tuple[OperatorCost, ...]
    """The costs of its operators, in their order."""


class ChainAccess:
    """The declaration of a chain as one operator, for everything that a sketch needs to know."""

    opaque: str | None = None

    def __init__(
        self, operator_costs: OperatorCosts, chain: Sequence[Operator], known: dict[Region, ChainCost]
    ) -> None:
        """`known` has the costs that were computed already, by region; chains of equal kinds share it."""
        self._operator_costs = operator_costs
        self._chain = chain
        self._known = known
        self.family = operator_costs.accesses[chain[0].name].family

    def axes(self) -> tuple[Axis, ...]:
        """Returns no axes: a chain is not divided further."""
        return ()

    def needs(self, outputs: Outputs) -> tuple[Region | None, ...]:
        """The region that is read of each input to write `outputs`."""
        return self._cost_of(outputs).needs

    def seconds_on(self, outputs: Outputs, device: Device) -> float:
        """Seconds to compute `outputs` on `device`."""
        return sum([one.seconds_on(device) for one in self._cost_of(outputs).operators])

    def flops(self, outputs: Outputs) -> float:
        """Floating-point operations of all operators of the chain."""
        return sum([one.work.flops for one in self._cost_of(outputs).operators])

    def reduction(self, axis: Axis) -> Reduction:
        """Raises InternalError: operators that are parted stay out of chains."""
        raise InternalError(f"the operators behind {self._chain[0].name!r} are not parted together")

    def localize(self, outputs: Outputs) -> Local:
        """Raises InternalError: a sketch of chains is never written out."""
        raise InternalError(f"the operators behind {self._chain[0].name!r} are not written out together")

    def _cost_of(self, outputs: Outputs) -> ChainCost:
        (region,) = outputs.values()
        found = self._known.get(region)
        if found is None:
            found = self._known[region] = self._measure(region)
        return found

    def _measure(self, region: Region) -> ChainCost:
        """Follows the chain from its last operator to its first."""
        needs: list[Region | None] = []
        costs: list[OperatorCost] = []
        for n in range(len(self._chain) - 1, -1, -1):
            op = self._chain[n]
            (index,) = (k for k, name in enumerate(op.outputs) if name)
            cost = self._operator_costs.cost_of(op, ((index, region),))
            costs.append(cost)
            if n:
                link = op.inputs.index(output_of(self._chain[n - 1]))
                handed = cost.needs[link]
                assert handed is not None
                region = handed if handed.is_box else compact(handed)
                needs[:0] = (*cost.needs[:link], *cost.needs[link + 1 :])
            else:
                needs[:0] = cost.needs
        return ChainCost(tuple(needs), tuple(costs[::-1]))


class ChainCosts:
    """One graph with each of its chains as one operator, and the costs of the chains."""

    def __init__(self, coarse: Coarse, operator_costs: OperatorCosts) -> None:
        self.coarse = coarse
        self.operator_costs = operator_costs
        self.chains = find_chains(coarse)
        self._known: dict[tuple[int, ...], dict[Region, ChainCost]] = {}
        self._as_operators = {chain[-1].name: self._as_operator(chain) for chain in self.chains}
        """Each chain as one operator with its declaration, by name of the chain's last operator."""
        self._merged: dict[frozenset[str], tuple[Graph, Mapping[str, Access]]] = {}

    @property
    def inner_bytes(self) -> int:
        """An upper bound on the memory that a device needs in addition to what a sketch of chains predicts:
        for operators that the sketch does not count, and for the tensors inside one chain."""
        tensors = self.coarse.graph.tensors
        inside = [sum(tensors[output_of(op)].nbytes for op in chain) for chain in self.chains]
        fewer = sum(len(chain) - 1 for chain in self.chains)
        return max(inside, default=0) + fewer * OPERATOR_BYTES

    def merge(self, parted: Iterable[str]) -> tuple[Graph, Mapping[str, Access]]:
        """The graph with its chains merged, and its declarations. Chains that contain one of the operators
        `parted` are not merged. Equal arguments give the same objects."""
        members = {op.name: chain[-1].name for chain in self.chains for op in chain}
        apart = frozenset(members[name] for name in parted if name in members)
        if apart not in self._merged:
            self._merged[apart] = self._merge(apart)
        return self._merged[apart]

    def _merge(self, apart: frozenset[str]) -> tuple[Graph, Mapping[str, Access]]:
        whole, accesses = self.coarse.graph, self.coarse.accesses
        taken = {name: one for name, one in self._as_operators.items() if name not in apart}
        inside = {op.name for chain in self.chains if chain[-1].name not in apart for op in chain}
        operators = tuple(
            taken[op.name][0] if op.name in taken else op
            for op in whole.operators
            if op.name in taken or op.name not in inside
        )
        known = {op.name: taken[op.name][1] if op.name in taken else accesses[op.name] for op in operators}
        return replace(whole, operators=operators), known

    def _as_operator(self, chain: Sequence[Operator]) -> tuple[Operator, ChainAccess]:
        """The chain as one operator, under the name of its last operator."""
        head, last = chain[0], chain[-1]
        inputs = list(head.inputs)
        for before, op in pairwise(chain):
            link = op.inputs.index(output_of(before))
            inputs += (*op.inputs[:link], *op.inputs[link + 1 :])
        kind = tuple(self.operator_costs.kind_of(op) for op in chain)
        access = ChainAccess(self.operator_costs, chain, self._known.setdefault(kind, {}))
        made = replace(head, name=last.name, inputs=tuple(inputs), outputs=(output_of(last),))
        return made, access


class ChainCostModel:
    """Seconds of chains, and of operators that are in no chain; for lowering."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self._devices = {device.name: device for device in cost.cluster.devices}

    def know(self, graph: Graph) -> None:
        self.cost.know(graph)

    def compute_s(
        self, op: Operator, access: Access, outputs: Outputs, device: str, engine: str | None = None
    ) -> float:
        if isinstance(
            access, ChainAccess
        ):  # Where a device has engines, nothing is merged (Scorer.sketch_lowering).
            return access.seconds_on(outputs, self._devices[device])
        return self.cost.compute_s(op, access, outputs, device, engine)

    def segment_s(self, device: str, engine: str = CPU) -> float:
        return self.cost.segment_s(device, engine)

    def engines(self, device: str) -> Sequence[Engine]:
        return self.cost.engines(device)

    def copy_s(self, device: str, nbytes: float) -> float:
        return self.cost.copy_s(device, nbytes)

    def profiled_s(self, timed_as: str, device: str) -> float | None:
        """Returns None: no device runs a chain as a segment of its own."""
        return None

    def drift(self, device: str, engine: str = CPU) -> float:
        return self.cost.drift(device, engine)
