"""Byte costs: the tables of a search for the cuts that move least (Tofu's cost of a partition).

Input is the ways to cut each layer over groups of devices. Output is tables in bytes: one for each layer, by
its cut, and one for each tensor between two layers, by the cuts of both, of what groups read and do not hold.
The level below is configuration_cost.py; elimination.py finds the cuts of least cost.

Every byte that a group lacks counts, wherever it comes from, so that the sum at the last level is all that
the cuts move. Halos follow from access maps; layers and edges that differ only in names are measured once.
Rules only: numpy."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from edgepart.planner.layers.search_nodes import SearchNode
from edgepart.planner.layerwise.configuration_cost import ConfigurationCosts, ConfigurationTable
from edgepart.planner.layerwise.elimination import Edge, Table
from edgepart.planner.layerwise.overlap import count_overlaps
from edgepart.planner.layout.choices import Choice
from edgepart.planner.search.memo import Memo


@dataclass(frozen=True, eq=False)
class MeasuredCuts:
    """The costs of one layer under the ways to cut it. One object stands for all equal layers, and is equal
    only to itself."""

    costs: ConfigurationTable

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.costs.choices


class ByteCosts:
    """Makes tables in bytes, each once for all equal layers or edges."""

    def __init__(self, memo: Memo, weights: bool = False) -> None:
        """With `weights`, each copy of a weight counts like bytes that move, as it takes memory. Without, no
        weight counts, as no request moves it."""
        self.memo = memo
        self.weights = weights
        self.nodes: tuple[SearchNode, ...] = memo.operator_costs.search_nodes
        self._costs: dict[int, ConfigurationCosts] = {}
        self._tables: dict[Hashable, Table] = {}

    def measure(self, node: SearchNode, choices: Sequence[Choice]) -> MeasuredCuts:
        """The costs of `choices`, which all have the same groups of devices; one device stands for each group."""
        if node.kind not in self._costs:
            self._costs[node.kind] = ConfigurationCosts(self.memo, node)
        return MeasuredCuts(self._costs[node.kind].measure(choices, timed=False))

    def tables(self, measured: Sequence[MeasuredCuts], gateway: str) -> tuple[list[Table], list[Edge]]:
        """Bytes of every node, and of every tensor between two nodes. `measured` has an entry for each of
        `nodes`. Inputs of the model come from the group that the device `gateway` stands for, and outputs go
        there.

        An input that several nodes read counts for the first of them only: after that, it is there."""
        home = next(n for n, device in enumerate(self.memo.cluster.devices) if device.name == gateway)
        homes = {name: (n, k) for n, node in enumerate(self.nodes) for k, name in enumerate(node.exits)}
        unary: list[Table] = []
        edges: list[Edge] = []
        brought: set[str] = set()
        for n, (node, one) in enumerate(zip(self.nodes, measured, strict=True)):
            unary.append(self._own_bytes(node, one, home))
            for s, name in enumerate(node.sources):
                if name in homes:
                    m, k = homes[name]
                    edges.append((m, n, self._edge(name, (measured[m], k), (one, s))))
                elif name not in brought and name in self.memo.graph.request_inputs:
                    brought.add(name)
                    unary[n] = unary[n] + self._input_bytes(name, one, s, home)
        return unary, edges

    def _own_bytes(self, node: SearchNode, one: MeasuredCuts, home: int) -> Table:
        """Bytes of addends, of what the gateway lacks of the model's outputs, and perhaps of weights, [cut]."""
        found: Table = one.costs.addend_bytes.sum((1, 2))
        if self.weights:
            found = found + one.costs.weight_bytes.sum(axis=1)
        for k, name in enumerate(node.exits):
            if name in self.memo.graph.answer_outputs:
                size = self.memo.graph.region_of(name).size
                lacks = size - one.costs.holds[k].sizes[:, home]
                share = self.memo.problem.answer_share.get(name, 1.0)
                found = found + lacks * self.memo.cost.item_bytes(name) * share
        return found

    def _input_bytes(self, name: str, one: MeasuredCuts, source: int, home: int) -> Table:
        """Bytes of an input of the model that are read elsewhere than at the gateway, [cut]."""
        sizes = one.costs.reads[source].sizes
        found: Table = (sizes.sum(1) - sizes[:, home]) * self.memo.cost.item_bytes(name)
        return found

    def _edge(self, name: str, writer: tuple[MeasuredCuts, int], reader: tuple[MeasuredCuts, int]) -> Table:
        """Bytes that the reader's groups read and do not hold, [writer's cut, reader's]; the writer's exit and the reader's
        source are `name`."""
        key = (writer, reader)
        if key not in self._tables:
            holds = writer[0].costs.holds[writer[1]]
            reads = reader[0].costs.reads[reader[1]]
            common = count_overlaps(holds.regions, reads.regions)[holds.index[:, None], reads.index[None]]
            lacks = reads.sizes.sum(1)[None] - common.sum(2)
            self._tables[key] = np.maximum(lacks, 0.0) * self.memo.cost.item_bytes(name)
        return self._tables[key]
