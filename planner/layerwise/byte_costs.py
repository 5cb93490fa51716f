"""Traffic: the cost tables of a search that makes communication least: by the ways in which layers are cut, the bytes that
groups of devices read and do not hold (Tofu's cost of a partition).

Every byte that a group lacks counts, wherever it comes from, so that the sum at the last level is all that the cuts
move. Borders come from access maps, as everything does; layers and edges that are the same but for names are looked at
once. Rules only: numpy."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from edgepart.planner.layers.search_nodes import SearchNode
from edgepart.planner.layerwise.elimination import Edge, Table
from edgepart.planner.layerwise.configuration_cost import ConfigurationTable, ConfigurationCosts
from edgepart.planner.layerwise.overlap import count_overlaps
from edgepart.planner.layout.choices import Choice
from edgepart.planner.search.memo import Memo


@dataclass(frozen=True, eq=False)
class MeasuredCuts:
    """Ways to cut one layer, measured. One object stands for all layers that are alike; itself its only equal."""

    footprint: ConfigurationTable

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.footprint.choices


class ByteCosts:
    """Tables, each made once for all that are alike."""

    def __init__(self, memo: Memo, weights: bool = False) -> None:
        """With `weights`, each copy of a weight counts like what moves, as it takes memory; else none does, as no request
        moves it."""
        self.memo = memo
        self.weights = weights
        self.nodes: tuple[SearchNode, ...] = memo.operator_costs.reaches
        self._walkers: dict[int, ConfigurationCosts] = {}
        self._tables: dict[Hashable, Table] = {}

    def weigh(self, node: SearchNode, choices: Sequence[Choice]) -> MeasuredCuts:
        """A measurement; all of `choices` are about the same groups of devices, each known by one of them."""
        if node.kind not in self._walkers:
            self._walkers[node.kind] = ConfigurationCosts(self.memo, node)
        return MeasuredCuts(self._walkers[node.kind].measure(choices, timed=False))

    def tables(self, weighed: Sequence[MeasuredCuts], gateway: str) -> tuple[list[Table], list[Edge]]:
        """Bytes of every node, and of every tensor between two of them; one of `weighed` for each of `nodes`. Inputs of
        the model come from the group that is known by the device `gateway`, and outputs go there.

        An input that several nodes read is counted for the first of them: then it is there."""
        home = next(n for n, device in enumerate(self.memo.cluster.devices) if device.name == gateway)
        homes = {name: (n, k) for n, node in enumerate(self.nodes) for k, name in enumerate(node.exits)}
        unary: list[Table] = []
        edges: list[Edge] = []
        brought: set[str] = set()
        for n, (node, one) in enumerate(zip(self.nodes, weighed, strict=True)):
            unary.append(self._own(node, one, home))
            for s, name in enumerate(node.sources):
                if name in homes:
                    m, k = homes[name]
                    edges.append((m, n, self._edge(name, (weighed[m], k), (one, s))))
                elif name not in brought:
                    brought.add(name)
                    unary[n] = unary[n] + self._brought(name, one, s, home)
        return unary, edges

    def _own(self, node: SearchNode, one: MeasuredCuts, home: int) -> Table:
        """Addends, what the gateway lacks of the model's outputs, and perhaps weights."""
        found: Table = one.footprint.addends.sum((1, 2))
        if self.weights:
            found = found + one.footprint.weights
        for k, name in enumerate(node.exits):
            if name in self.memo.graph.outputs:
                size = self.memo.graph.region_of(name).size
                lacks = size - one.footprint.holds[k].sizes[:, home]
                found = found + lacks * self.memo.cost.item_bytes(name)
        return found

    def _brought(self, name: str, one: MeasuredCuts, source: int, home: int) -> Table:
        """An input of the model, wherever it is read but at the gateway."""
        sizes = one.footprint.reads[source].sizes
        found: Table = (sizes.sum(1) - sizes[:, home]) * self.memo.cost.item_bytes(name)
        return found

    def _edge(self, name: str, writer: tuple[MeasuredCuts, int], reader: tuple[MeasuredCuts, int]) -> Table:
        """What the reader's groups read and do not hold, by [writer's choice, reader's]; the writer's exit and the reader's
        source are `name`."""
        key = (writer, reader)
        if key not in self._tables:
            holds = writer[0].footprint.holds[writer[1]]
            reads = reader[0].footprint.reads[reader[1]]
            common = count_overlaps(holds.regions, reads.regions)[holds.index[:, None], reads.index[None]]
            lacks = reads.sizes.sum(1)[None] - common.sum(2)
            self._tables[key] = np.maximum(lacks, 0.0) * self.memo.cost.item_bytes(name)
        return self._tables[key]
