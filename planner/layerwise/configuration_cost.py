"""Configuration cost: the cost of a layer under each of its configurations, over all devices.

Input is a node of a layer-wise search and choices for it. Output is a table with one row for each choice: the
seconds of the slowest device, the bytes of addends that travel, the bytes of weights, and the regions that
each device holds of the exits and reads of the sources. The level below is planner/cost/layer_cost.py, asked
once for each device. The levels above are the tables over whole models: time_costs.py and byte_costs.py.
Rules only: numpy, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from edgepart.planner.cost.layer_cost import Addends, ExitRegions, LayerCost, PartialSumCosts
from edgepart.planner.layers.search_nodes import SearchNode
from edgepart.planner.layerwise.elimination import Table
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole, cut_tiles, part
from edgepart.planner.layout.strategy import Parted
from edgepart.planner.region import Region
from edgepart.planner.search.memo import Memo

Indices = np.ndarray[Any, np.dtype[np.int64]]

LEAST_S = 1e-12
"""The seconds that layers without cost (views) count as, so that speeds are finite."""


class TensorRegions:
    """The region of one tensor that each device holds or reads, for each configuration."""

    def __init__(self, rows: Sequence[Sequence[Region | None]]) -> None:
        """`rows` has one row for each configuration, with an entry for each device."""
        distinct = {id(region): region for row in rows for region in row}
        ids: dict[Region | None, int] = {}
        places = {key: ids.setdefault(region, len(ids)) for key, region in distinct.items()}
        self.index: Indices = np.array([[places[id(region)] for region in row] for row in rows])
        self.regions: tuple[Region | None, ...] = tuple(ids)
        """All regions, each once."""

    @cached_property
    def sizes(self) -> Table:
        """Elements of the regions, [configuration, device]."""
        each = np.array([0.0 if region is None else float(region.size) for region in self.regions])
        found: Table = each[self.index]
        return found


@dataclass(frozen=True)
class ConfigurationTable:
    """The costs of one layer under several configurations; arrays have one row for each."""

    choices: tuple[Choice, ...]
    seconds: Table
    """[configuration]: seconds of the slowest device; `inf` where a device cannot hold the layer's weights."""
    addend_bytes: Table
    """[configuration, source device, target device]: bytes of addends that travel; zero where nothing is summed."""
    weight_bytes: Table
    """[configuration, device]: bytes of weights, together more than the layer has where several devices hold the same."""
    holds: tuple[TensorRegions, ...]
    """The regions that devices hold of each exit of the layer."""
    reads: tuple[TensorRegions, ...]
    """The regions that devices read of each source of the node."""


@dataclass(frozen=True)
class ConfigurationCost:
    """The cost of one layer under one configuration."""

    exit_regions: list[ExitRegions]
    """The regions of the exits that each device holds."""
    layer_costs: list[LayerCost]
    """The cost of each device's work."""
    seconds: float
    """Seconds of the slowest device."""
    addend_bytes: Table
    """[source device, target device]: bytes of addends that travel."""


class ConfigurationCosts:
    """Measures one node of a layer-wise search under its configurations, each once."""

    def __init__(self, memo: Memo, node: SearchNode) -> None:
        self.memo = memo
        self.node = node
        self.layer_costs = memo.layer_costs_of(node)
        self.devices = memo.cluster.devices
        self.places = {device.name: n for n, device in enumerate(self.devices)}
        self.full = {name: memo.graph.tensors[name].region for name in node.layer.exits}
        self.limits = [memo.limit_bytes(device.name) for device in self.devices]
        self.nothing = np.zeros((len(self.devices), len(self.devices)))
        self.timed = True
        self._costs: dict[Choice, ConfigurationCost] = {}
        self._given: dict[Choice, list[ExitRegions]] = {}
        self._parted: dict[tuple[str, Parted], PartialSumCosts] = {}

    @cached_property
    def whole(self) -> LayerCost:
        """The cost of a device that holds everything."""
        return self.layer_costs.cost_of(tuple(self.full.values()))

    def speeds(self) -> dict[str, float]:
        """How many layers like this one each device computes in a second."""
        named = zip(self.devices, self.whole_s, strict=True)
        return {device.name: 1 / max(seconds, LEAST_S) for device, seconds in named}

    def measure(self, choices: Sequence[Choice], timed: bool = True) -> ConfigurationTable:
        """The costs under each of `choices`; where not `timed`, all seconds are 0."""
        self.timed = timed
        costs = [self.cost_of(choice) for choice in choices]
        exits, sources = self.node.layer.exits, self.node.sources
        return ConfigurationTable(
            tuple(choices),
            np.array([one.seconds for one in costs]),
            np.stack([one.addend_bytes for one in costs]),
            np.array([[cost.weight_bytes for cost in one.layer_costs] for one in costs]),
            tuple(
                TensorRegions([[regions[n] for regions in one.exit_regions] for one in costs])
                for n in range(len(exits))
            ),
            tuple(
                TensorRegions([[cost.reads.get(name) for cost in one.layer_costs] for one in costs])
                for name in sources
            ),
        )

    def cost_of(self, choice: Choice) -> ConfigurationCost:
        """The cost under one configuration."""
        found = self._costs.get(choice)
        if found is None:
            found = self._costs[choice] = self._measure(choice)
        return found

    def least_s(self, choice: Choice) -> float:
        """A lower bound on the seconds of a configuration, as smaller parts run at no higher rate. If a sum
        is divided, only the operator that makes it counts."""
        if isinstance(choice, Reduce):
            return self._least_summed_s(choice)
        whole = self.whole_s
        return max(
            seconds
            * min(_part(one, full) for one, full in zip(exit_regions, self.full.values(), strict=True))
            for exit_regions, seconds in zip(self._exit_regions(choice), whole, strict=True)
        )

    def _least_summed_s(self, choice: Reduce) -> float:
        """Seconds of the device whose part of the divided operator takes longest."""
        found = part(self.node.layer, choice)
        if found is None:
            return 0.0
        op, parted = found
        extent = max(one.stop for _, one in parted.parts)
        return max(
            self.memo.seconds_on(name)[op] * (one.stop - one.start) / extent for name, one in parted.parts
        )

    @cached_property
    def whole_s(self) -> tuple[float, ...]:
        """Seconds that each device takes to compute the whole layer."""
        return tuple(map(self.whole.seconds_on, self.devices))

    def _measure(self, choice: Choice) -> ConfigurationCost:
        exit_regions = self._exit_regions(choice.then if isinstance(choice, Reduce) else choice)
        parted = part(self.node.layer, choice) if isinstance(choice, Reduce) else None
        if parted is not None:
            return self._measure_sums(exit_regions, *parted)
        costs = [self.layer_costs.cost_of(one) for one in exit_regions]
        return ConfigurationCost(exit_regions, costs, self._slowest_s(enumerate(costs)), self.nothing)

    def _exit_regions(self, choice: Choice) -> list[ExitRegions]:
        """The regions of the exits that each device holds, remembered for each choice."""
        found = self._given.get(choice)
        if found is None:
            found = self._given[choice] = self._lay_out(choice)
        return found

    def _lay_out(self, choice: Choice) -> list[ExitRegions]:
        if isinstance(choice, Whole):
            given = [dict.fromkeys(choice.devices, region) for region in self.full.values()]
        elif isinstance(choice, Divide):
            given = [cut_tiles(name, region, self.node.layer, choice) for name, region in self.full.items()]
        else:
            raise ValueError(f"{choice} is no configuration: a layer's regions would hang on its readers'")
        return [tuple(regions.get(device.name) for regions in given) for device in self.devices]

    def _slowest_s(self, costs: Iterator[tuple[int, LayerCost]]) -> float:
        """Seconds of the slowest device, from each device's number and work; `inf` if one lacks memory for its weights."""
        if not self.timed:
            return 0.0
        return max(
            float("inf") if one.weight_bytes > self.limits[n] else one.seconds_on(self.devices[n])
            for n, one in costs
        )

    def _measure_sums(self, exit_regions: list[ExitRegions], name: str, parted: Parted) -> ConfigurationCost:
        """The cost if each device first makes the addends of its part, and then the rest of what it holds."""
        sums = self._sums(name, parted)
        rest = [self.layer_costs.cost_of(one, name) for one in exit_regions]
        made: dict[int, Addends] = {}
        addend_bytes = self.nothing.copy()
        for target, region in self._regions_to_combine(sums, exit_regions, rest):
            combining, wanted = sums.combine(region)
            rest[target] += combining
            for source, regions in wanted.items():
                addend_bytes[source, target] = sums.addend_bytes(regions) if source != target else 0.0
                mine = made.setdefault(source, {})
                for k, addend in regions.items():
                    mine[k] = mine[k].union_spans(addend) if k in mine else addend
        first = {source: sums.make(source, wanted) for source, wanted in made.items()}
        seconds = self._slowest_s(iter(first.items())) + self._slowest_s(enumerate(rest))
        return ConfigurationCost(
            exit_regions,
            [one + first[n] if n in first else one for n, one in enumerate(rest)],
            seconds,
            addend_bytes,
        )

    def _sums(self, name: str, parted: Parted) -> PartialSumCosts:
        key = (name, parted)
        if key not in self._parted:
            parts = [(self.places[device], one) for device, one in parted.parts]
            op = self.memo.graph.by_name[name]
            self._parted[key] = PartialSumCosts(self.memo.operator_costs, self.node, op, parted.axis, parts)
        return self._parted[key]

    def _regions_to_combine(
        self, sums: PartialSumCosts, exit_regions: list[ExitRegions], rest: list[LayerCost]
    ) -> Iterator[tuple[int, Region]]:
        """Yield each device's number and the region of the divided operator's output that it combines from addends."""
        name, exits = sums.op.outputs[0], self.node.layer.exits
        for n, one in enumerate(rest):
            region = exit_regions[n][exits.index(name)] if name in exits else one.reads.get(name)
            if region is not None and not region.is_empty:
                yield n, region


def _part(region: Region | None, full: Region) -> float:
    """The part of a tensor's elements that is in `region`."""
    return 0.0 if region is None else region.size / max(1, full.size)
