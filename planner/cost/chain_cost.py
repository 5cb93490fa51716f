"""Bundles: operators that always run together, as one. A search looks at hundreds of candidates, and what a convolution,
the norm and the activation behind it do in one place need not be looked at three times. Rules only.

A bundle is a chain inside one layer: each operator reads the one before it and constants, and nobody else reads what they
hand each other. So all of a chain runs on the same device, in the same segment and at the same time, whatever a
strategy chooses: a sketch of bundles has the segments, messages and seconds of a sketch of operators. Only
the memory that a device needs inside a chain is not in it (`ChainCosts.inner_bytes` says how much that is at most)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edgepart.planner.access.declare.protocol import Access, Axis, Local, Outputs, Reduction
from edgepart.planner.cost.cost import Cost
from edgepart.planner.cost.memory import OPERATOR_BYTES
from edgepart.planner.cost.operator_cost import OperatorCost, OperatorCosts
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import InternalError
from edgepart.planner.layers.chains import find_chains, output_of
from edgepart.planner.layers.coarsen import Coarse
from edgepart.planner.layout.choices import compact
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Region


@dataclass(frozen=True, slots=True)
class ChainCost:
    """What a chain does for one region of what it writes."""

    needs: tuple[Region | None, ...]
    pieces: tuple[OperatorCost, ...]


class ChainAccess:
    """The declaration of a chain, for everything that a sketch asks."""

    opaque: str | None = None

    def __init__(self, ground: OperatorCosts, chain: Sequence[Operator], known: dict[Region, ChainCost]) -> None:
        """`known` is shared by all chains that are alike."""
        self._ground = ground
        self._chain = chain
        self._known = known
        self.family = ground.accesses[chain[0].name].family

    def axes(self) -> tuple[Axis, ...]:
        return ()

    def needs(self, outputs: Outputs) -> tuple[Region | None, ...]:
        return self._done(outputs).needs

    def seconds(self, outputs: Outputs, device: Device) -> float:
        """Of computing `outputs` there."""
        return sum([piece.on(device) for piece in self._done(outputs).pieces])

    def flops(self, outputs: Outputs) -> float:
        """Of what takes time."""
        return sum([piece.work.flops for piece in self._done(outputs).pieces])

    def reduction(self, axis: Axis) -> Reduction:
        raise InternalError(f"the operators behind {self._chain[0].name!r} are not parted together")

    def localize(self, outputs: Outputs) -> Local:
        raise InternalError(f"the operators behind {self._chain[0].name!r} are not written out together")

    def _done(self, outputs: Outputs) -> ChainCost:
        (region,) = outputs.values()
        found = self._known.get(region)
        if found is None:
            found = self._known[region] = self._follow(region)
        return found

    def _follow(self, region: Region) -> ChainCost:
        """From the last operator to the first."""
        needs: list[Region | None] = []
        pieces: list[OperatorCost] = []
        for n in range(len(self._chain) - 1, -1, -1):
            op = self._chain[n]
            (index,) = (k for k, name in enumerate(op.outputs) if name)
            piece = self._ground.piece(op, ((index, region),))
            pieces.append(piece)
            if n:
                link = op.inputs.index(output_of(self._chain[n - 1]))
                handed = piece.needs[link]
                assert handed is not None
                region = handed if handed.is_box else compact(handed)
                needs[:0] = (*piece.needs[:link], *piece.needs[link + 1 :])
            else:
                needs[:0] = piece.needs
        return ChainCost(tuple(needs), tuple(pieces[::-1]))


class ChainCosts:
    """One graph with its chains bundled; with those apart that are to be parted along a reduced axis."""

    def __init__(self, coarse: Coarse, ground: OperatorCosts) -> None:
        self.coarse = coarse
        self.ground = ground
        self.chains = find_chains(coarse)
        self._known: dict[tuple[int, ...], dict[Region, ChainCost]] = {}
        self._bundles = {chain[-1].name: self._bundle(chain) for chain in self.chains}
        """By name, which is that of the last operator."""
        self._found: dict[frozenset[str], tuple[Graph, Mapping[str, Access]]] = {}

    @property
    def inner_bytes(self) -> int:
        """What a device needs at most, besides what a sketch of bundles says: for operators that are not counted there, and
        for what is handed on inside one chain."""
        tensors = self.coarse.graph.tensors
        inside = [sum(tensors[output_of(op)].nbytes for op in chain) for chain in self.chains]
        fewer = sum(len(chain) - 1 for chain in self.chains)
        return max(inside, default=0) + fewer * OPERATOR_BYTES

    def graph(self, parted: Iterable[str]) -> tuple[Graph, Mapping[str, Access]]:
        """The graph and its declarations, where the operators `parted` have to stay apart."""
        members = {op.name: chain[-1].name for chain in self.chains for op in chain}
        apart = frozenset(members[name] for name in parted if name in members)
        if apart not in self._found:
            self._found[apart] = self._made(apart)
        return self._found[apart]

    def _made(self, apart: frozenset[str]) -> tuple[Graph, Mapping[str, Access]]:
        whole, accesses = self.coarse.graph, self.coarse.accesses
        taken = {name: one for name, one in self._bundles.items() if name not in apart}
        inside = {op.name for chain in self.chains if chain[-1].name not in apart for op in chain}
        operators = tuple(
            taken[op.name][0] if op.name in taken else op
            for op in whole.operators
            if op.name in taken or op.name not in inside
        )
        known = {op.name: taken[op.name][1] if op.name in taken else accesses[op.name] for op in operators}
        return replace(whole, operators=operators), known

    def _bundle(self, chain: Sequence[Operator]) -> tuple[Operator, ChainAccess]:
        head, last = chain[0], chain[-1]
        inputs = list(head.inputs)
        for before, op in pairwise(chain):
            link = op.inputs.index(output_of(before))
            inputs += (*op.inputs[:link], *op.inputs[link + 1 :])
        kind = tuple(self.ground.kind(op) for op in chain)
        bundle = ChainAccess(self.ground, chain, self._known.setdefault(kind, {}))
        made = replace(head, name=last.name, inputs=tuple(inputs), outputs=(output_of(last),))
        return made, bundle


class ChainCostModel:
    """Seconds of bundles, and of the operators that are in none."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self._devices = {device.name: device for device in cost.cluster.devices}

    def know(self, graph: Graph) -> None:
        self.cost.know(graph)

    def compute_s(self, op: Operator, access: Access, outputs: Outputs, device: str) -> float:
        if isinstance(access, ChainAccess):
            return access.seconds(outputs, self._devices[device])
        return self.cost.compute_s(op, access, outputs, device)

    def segment_s(self, device: str) -> float:
        return self.cost.segment_s(device)

    def copy_s(self, device: str, nbytes: float) -> float:
        return self.cost.copy_s(device, nbytes)

    def profiled_s(self, digest: str, device: str) -> float | None:
        """Nobody measures bundles."""
        return None

    def drift(self, device: str) -> float:
        return self.cost.drift(device)
