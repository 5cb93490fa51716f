"""Time costs: the tables of a search for the fastest configurations (OptCNN, section 5.1).

Input is a model on its devices. Output is tables in seconds: one for each layer, by its configuration, and
one for each tensor between two layers, by the configurations of both, for moving what the second reads and
the first holds elsewhere. The level below is configuration_cost.py; elimination.py finds the configurations
of least cost.

The elements that move are those that lowering moves: of the region that a device reads, those that another
device holds. No formula here is specific to convolutions. Layers and edges that differ only in names are
measured once. Rules only.

The paper's t_S, the time to synchronise parameters, is left out, as inference changes no parameters."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgepart.planner.cost.layer_cost import LayerCost
from edgepart.planner.cost.work import CONVOLUTIONS
from edgepart.planner.layers.search_nodes import SearchNode
from edgepart.planner.layerwise.configuration_cost import (
    ConfigurationCosts,
    ConfigurationTable,
    TensorRegions,
)
from edgepart.planner.layerwise.configurations import (
    ConfigurationSpace,
    is_on_one_device,
    list_configurations,
    select_configurations,
)
from edgepart.planner.layerwise.elimination import Edge, Table
from edgepart.planner.layerwise.links import Links
from edgepart.planner.layerwise.overlap import count_overlaps
from edgepart.planner.layerwise.search_size import SearchSize, size_of
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole, part
from edgepart.planner.plans.reduced_precision import SHARE
from edgepart.planner.search.memo import Memo

PRODUCTS = CONVOLUTIONS | {"gemm"}
"""Families of operators whose addends have the shape of their output."""

NEARLY = 1 - 1e-9
"""The part of a lower bound that is certain although numbers are rounded."""

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class LayerwiseProblem:
    """A search problem in the form of `elimination.minimise`, with the nodes and their configurations."""

    nodes: tuple[SearchNode, ...]
    choices: tuple[tuple[Choice, ...], ...]
    """The configurations of each node."""
    unary: tuple[Table, ...]
    """The seconds of each node, [configuration]."""
    edges: tuple[Edge, ...]
    """The seconds of each tensor between two nodes, [writer's configuration, reader's]."""
    weight_bytes: tuple[Table, ...]
    """The bytes of each node's weights, [configuration, device]."""
    listed: tuple[int, ...]
    """The number of configurations of each node in the whole space, of which `choices` has some or all."""

    @property
    def is_whole(self) -> bool:
        """Whether every configuration of every node is compared."""
        return all(len(some) == count for some, count in zip(self.choices, self.listed, strict=True))

    def choices_of(self, found: Sequence[int]) -> dict[int, Choice]:
        """The configuration of each layer, by its number, from the index found for each node; junctions are left out."""
        named = zip(self.nodes, self.choices, found, strict=True)
        return {node.layer.number: choices[n] for node, choices, n in named if not node.is_junction}


class TimeCosts:
    """Makes tables in seconds, each once for all equal layers or edges."""

    def __init__(self, memo: Memo, among: ConfigurationSpace) -> None:
        self.memo = memo
        self.among = among
        self.devices = memo.cluster.devices
        self.gateway = next(n for n, d in enumerate(self.devices) if d.name == memo.problem.gateway)
        self.links = Links(memo)
        self.share = SHARE[memo.problem.transfer_dtype]
        """The smallest part of the bytes of addends that travels."""
        self._masks: dict[Hashable, Mask] = {}
        self.start_s = np.array([memo.cost.segment_s(d.name) for d in self.devices])
        self.copy_s = np.array([memo.cost.copy_s(d.name, 1.0) for d in self.devices])
        self._costs: dict[Hashable, ConfigurationCosts] = {}
        self._listed: dict[Hashable, tuple[Choice, ...]] = {}
        self._configuration_tables: dict[Hashable, ConfigurationTable] = {}
        self._tables: dict[Hashable, Table] = {}

    def size(self) -> SearchSize:
        """The size of a search over every configuration."""
        nodes = self.memo.operator_costs.search_nodes
        return size_of(nodes, [len(self._list(node)) for node in nodes], len(self.devices))

    def build_problem(self) -> LayerwiseProblem:
        """The search problem over every layer and junction, and every tensor between two of them."""
        nodes = self.memo.operator_costs.search_nodes
        costs = [self.configurations_of(node) for node in nodes]
        homes = {name: (n, k) for n, node in enumerate(nodes) for k, name in enumerate(node.layer.exits)}
        unary = [one.seconds for one in costs]
        edges: list[Edge] = []
        brought: set[str] = set()
        for n, (node, one) in enumerate(zip(nodes, costs, strict=True)):
            for s, name in enumerate(node.sources):
                if name in homes:
                    m, k = homes[name]
                    edges.append((m, n, self.edge(nodes[m], k, node, s)))
                elif name not in brought and name in self.memo.graph.request_inputs:
                    # Only the first reader counts: the input is sent when the request comes in, and is there for others.
                    brought.add(name)
                    unary[n] = unary[n] + self._input_s(node, one.reads[s], s, name)
            for k, name in enumerate(node.layer.exits):
                if name in self.memo.graph.answer_outputs:
                    unary[n] = unary[n] + self._output_s(node, k, name)
        return LayerwiseProblem(
            nodes,
            tuple(one.choices for one in costs),
            tuple(unary),
            tuple(edges),
            tuple(one.weight_bytes for one in costs),
            tuple(len(self._list(node)) for node in nodes),
        )

    def configurations_of(self, node: SearchNode) -> ConfigurationTable:
        """The costs of a node under the configurations that are compared; nodes of equal kinds share one object."""
        found = self._configuration_tables.get(node.kind)
        if found is None:
            choices, costs, most = self._list(node), self._costs_of(node), self.among.most
            one = costs.measure(choices if most is None else tuple(self._select(node, costs, choices, most)))
            seconds = one.seconds + self._summing_s(one.addend_bytes)
            found = self._configuration_tables[node.kind] = replace(one, seconds=seconds)
        return found

    def _costs_of(self, node: SearchNode) -> ConfigurationCosts:
        if node.kind not in self._costs:
            self._costs[node.kind] = ConfigurationCosts(self.memo, node)
        return self._costs[node.kind]

    def _list(self, node: SearchNode) -> tuple[Choice, ...]:
        """Every configuration of a node."""
        found = self._listed.get(node.kind)
        if found is None:
            costs = self._costs_of(node)
            sums = self._may_sum(node, costs.whole)
            found = list_configurations(node.layer, self.among, costs.speeds(), sums)
            self._listed[node.kind] = found
        return found

    def _select(
        self, node: SearchNode, costs: ConfigurationCosts, choices: Sequence[Choice], most: int
    ) -> Iterator[Choice]:
        """Yield at most `most` configurations that are worth comparing, in order. Those that are certainly too
        slow are not measured."""
        places = max(1, most - sum(map(self._is_kept, choices)))
        alone_s = min(
            (costs.cost_of(one).seconds for one in choices if is_on_one_device(one)), default=float("inf")
        )
        least = [(costs.least_s(choice) + self._least_summing_s(node, choice)) * NEARLY for choice in choices]
        measured: dict[int, float] = {}
        ranked: list[float] = []
        """Seconds of the configurations that compete for the places."""
        for n in sorted(range(len(choices)), key=lambda n: (not self._is_kept(choices[n]), least[n])):
            if len(ranked) >= places and least[n] > ranked[places - 1]:
                break
            choice = choices[n]
            measured[n] = self._seconds(costs, choice)
            if not self._is_kept(choice) and (is_on_one_device(choice) or measured[n] < alone_s):
                insort(ranked, measured[n])
        known = sorted(measured)
        taken = select_configurations(
            [choices[n] for n in known],
            [measured[n] for n in known],
            self._is_kept,
            most,
        )
        yield from (choices[known[n]] for n in taken)

    def _seconds(self, costs: ConfigurationCosts, choice: Choice) -> float:
        """Seconds of one configuration, and of summing its addends."""
        cost = costs.cost_of(choice)
        return cost.seconds + (
            float(self._summing_s(cost.addend_bytes[None])[0]) if isinstance(choice, Reduce) else 0.0
        )

    def _least_summing_s(self, node: SearchNode, choice: Choice) -> float:
        """A lower bound on the seconds until a product's addends are combined. Each addend is as large as the
        product's output. If the sum is whole on every device, each device gets an addend from each other
        device; if it is in pieces, all devices together get one addend from each device but one."""
        found = part(node.layer, choice) if isinstance(choice, Reduce) else None
        if found is None or not isinstance(choice, Reduce):
            return 0.0
        op, others = self.memo.graph.by_name[found[0]], len(found[1].parts) - 1
        if self.memo.coarse.accesses[op.name].family not in PRODUCTS:
            return 0.0
        received = float(self.memo.graph.tensors[op.outputs[0]].nbytes * others)
        if isinstance(choice.then, Divide):
            received /= others + 1
        return received * self.share * self.links.least_byte_s

    def _may_sum(self, node: SearchNode, whole: LayerCost) -> bool:
        """Whether partial sums are worth comparing: if a layer has more weights than output, as dense layers
        have, and half of the output (at least as much has to travel) can travel in less time than one device
        takes for the layer."""
        nbytes = max(self.memo.graph.tensors[name].nbytes for name in node.exits)
        alone_s = min(whole.seconds_on(device) for device in self.devices)
        pays = nbytes < whole.weight_bytes and nbytes * self.share / 2 * self.links.least_byte_s < alone_s
        return pays or self.among.axis is not None

    def _is_kept(self, choice: Choice) -> bool:
        """Whether a configuration is compared in any case: whole on the fastest device, on the gateway, or on
        every device."""
        ends = (self.among.devices[0], self.among.gateway)
        return isinstance(choice, Whole) and (not is_on_one_device(choice) or choice.devices[0] in ends)

    def _summing_s(self, moved: Table) -> Table:
        """Seconds in which addends travel and are copied at both ends, [configuration]."""
        gets = moved.sum(1)
        border = (gets > 0) * self.start_s + (gets + moved.sum(2)) * self.copy_s
        found: Table = self.links.seconds(moved * self.share) + border.max(1)
        return found

    def edge(self, writer: SearchNode, exit: int, reader: SearchNode, source: int) -> Table:
        """Seconds until the reader has what it reads of one of the writer's exits, [writer's configuration,
        reader's]: for messages, and for copies at the segments' ends."""
        key = (writer.kind, exit, reader.kind, source)
        if key not in self._tables:
            holds, reads = (
                self.configurations_of(writer).holds[exit],
                self.configurations_of(reader).reads[source],
            )
            moved = self.moved_bytes(writer, exit, reader, source)
            name = writer.exits[exit]
            border = self._border_s(moved, holds, reads, name)
            share = self.memo.travel_bytes(name) / (self.memo.cost.item_bytes(name) or 1.0)
            self._tables[key] = self.links.seconds(moved * share) + border.max(2)
        return self._tables[key]

    def moved_bytes(self, writer: SearchNode, exit: int, reader: SearchNode, source: int) -> Table:
        """Bytes that move, [writer's configuration, reader's, source device, target device]."""
        one, two, name = self.configurations_of(writer), self.configurations_of(reader), writer.exits[exit]
        elements = float(self.memo.graph.region_of(name).size)
        sends = np.stack([self._senders(choice, elements) for choice in one.choices])
        return self._moved_table(one.holds[exit], two.reads[source], sends, name)

    def _input_s(self, node: SearchNode, reads: TensorRegions, source: int, name: str) -> Table:
        """Seconds to bring an input of the model from the gateway to the devices that read it, [configuration]."""
        key = (node.kind, "input", source)
        if key not in self._tables:
            full = self.memo.graph.region_of(name)
            input_regions = TensorRegions(
                [[full if n == self.gateway else None for n in range(len(self.devices))]]
            )
            sends = np.zeros((1, len(self.devices), len(self.devices)), bool)
            sends[:, self.gateway] = True
            moved = self._moved_table(input_regions, reads, sends, name)
            nbytes = moved.sum(2)
            border = (nbytes > 0) * self.start_s + nbytes * self.copy_s
            self._tables[key] = (self.links.seconds(moved) + border.max(2))[0]
        return self._tables[key]

    def _output_s(self, node: SearchNode, exit: int, name: str) -> Table:
        """Seconds to bring an output of the model from the devices that hold it to the gateway, [configuration]."""
        key = (node.kind, "output", exit)
        if key not in self._tables:
            one, full = self.configurations_of(node), self.memo.graph.region_of(name)
            reads = TensorRegions([[full if n == self.gateway else None for n in range(len(self.devices))]])
            sends = np.stack(
                [self._senders(choice, float(full.size), to_gateway=True) for choice in one.choices]
            )
            share = self.memo.problem.answer_share.get(name, 1.0)
            moved = self._moved_table(one.holds[exit], reads, sends, name) * share
            self._tables[key] = (self.links.seconds(moved) + (moved.sum(3) * self.copy_s).max(2))[:, 0]
        return self._tables[key]

    def _senders(self, choice: Choice, elements: float, to_gateway: bool = False) -> Mask:
        """A mask of the devices (rows) that send to each device what it lacks: all that hold a part, or one
        of several that hold everything, the same one that `demand.fetch_missing` takes. If an output goes to
        the gateway, the gateway's own device counts as a sender, too."""
        choice = choice.then if isinstance(choice, Reduce) else choice
        names = choice.devices if isinstance(choice, Whole) else ()
        key = (names, elements if len(names) > 1 else 0, to_gateway)
        if key not in self._masks:
            self._masks[key] = self._mask(names, elements, to_gateway)
        return self._masks[key]

    def _mask(self, names: Sequence[str], elements: float, to_gateway: bool) -> Mask:
        count = len(self.devices)
        if not names:
            return np.full((count, count), True) if to_gateway else ~np.eye(count, dtype=bool)
        owners = [n for n, device in enumerate(self.devices) if device.name in names]
        found = np.zeros((count, count), bool)
        for target in range(count):
            if to_gateway or target not in owners:
                found[self._sender(owners, target, elements, to_gateway), target] = True
        return found

    def _sender(self, owners: Sequence[int], target: int, elements: float, to_gateway: bool) -> int:
        def rank(n: int) -> tuple[float, int]:
            link = self.memo.cluster.link(self.devices[owners[n]].name, self.devices[target].name)
            turn = (n - (0 if to_gateway else target)) % len(owners)
            return link.latency_s + elements / link.bytes_per_s, turn

        return owners[min(range(len(owners)), key=rank)]

    def _moved_table(self, holds: TensorRegions, reads: TensorRegions, sends: Mask, name: str) -> Table:
        common = count_overlaps(holds.regions, reads.regions) * self.memo.cost.item_bytes(name)
        lanes = common[holds.index.T[:, None, :, None], reads.index.T[None, :, None, :]]
        lanes *= sends.transpose(1, 2, 0)[..., None]
        moved: Table = np.moveaxis(lanes, (0, 1), (2, 3))
        return moved

    def _border_s(self, moved: Table, holds: TensorRegions, reads: TensorRegions, name: str) -> Table:
        """Seconds at the segments' ends, [writer's configuration, reader's, device]: a device that receives
        starts a segment and puts together what it reads; a device that sends or receives has written what it
        holds."""
        item_bytes = self.memo.cost.item_bytes(name)
        gets, gives = moved.any(2), moved.any(3)
        taken = self.start_s + reads.sizes * item_bytes * self.copy_s
        given = holds.sizes * item_bytes * self.copy_s
        border: Table = gets * taken[None] + (gets | gives) * given[:, None]
        return border
