"""Ground: what one operator does for a region of what it writes: work, weights, and what it reads. Operators that are the
same but for names are measured once for all searches of one study. Rules only."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from edgepart.planner.access.language import Outputs
from edgepart.planner.cost import Cost, Work
from edgepart.planner.fusion import Coarse
from edgepart.planner.graph import Operator
from edgepart.planner.region import Region
from edgepart.planner.work import standing


@dataclass(frozen=True)
class Piece:
    """What one operator does for given regions of its outputs; the same for all operators of its kind."""

    work: Work | None
    """None for none."""
    weight_bytes: float
    reads: tuple[tuple[int, Region], ...]
    """Of inputs that are no constants, those that something is read of."""
    needs: tuple[Region | None, ...] = ()
    """The same of all inputs."""


class Ground:
    """Measures what operators do for regions, each piece once, so that the declarations need no memory of their own."""

    def __init__(self, coarse: Coarse, cost: Cost) -> None:
        self.graph = coarse.graph
        self.coarse = coarse
        self.cost = cost
        self.accesses = coarse.declared
        self._kinds: dict[str, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._pieces: dict[Hashable, Piece] = {}

    def piece(self, op: Operator, outputs: tuple[tuple[int, Region], ...]) -> Piece:
        """Of `op`, for regions of its outputs by index."""
        key = self._kinds.get(op.name) or self.kind(op), outputs
        found = self._pieces.get(key)
        if found is None:
            found = self._pieces[key] = self._measured(op, dict(outputs))
        return found

    def kind(self, op: Operator) -> int:
        """Equal for operators of which all pieces are the same; counted from 1."""
        family = self.coarse.accesses[op.name].family
        around = op.name in self.cost.free, standing(self.graph, op, family)
        kind = self.coarse.kinds[op.name], around
        self._kinds[op.name] = found = self._numbers.setdefault(kind, len(self._numbers) + 1)
        return found

    def _measured(self, op: Operator, outputs: Outputs) -> Piece:
        graph, cost, access = self.graph, self.cost, self.accesses[op.name]
        needs = access.needs(outputs)
        work = cost.measure(op, access, outputs, needs)
        reads: list[tuple[int, Region]] = []
        weight_bytes = 0.0
        for index, (name, region) in enumerate(zip(op.inputs, needs, strict=True)):
            if region is None or not name:
                continue
            if name in graph.constants:
                weight_bytes += region.size * cost.item_bytes(name)
            elif not region.is_empty:
                reads.append((index, region))
        return Piece(work if work.flops or work.nbytes else None, weight_bytes, tuple(reads), tuple(needs))
