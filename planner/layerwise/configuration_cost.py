"""Footprint: what a layer costs and touches under each of its configurations: seconds, what each device holds of its
exits and reads of its sources. Everything comes from regions and access maps. Rules only: numpy, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from edgepart.planner.cost.layer_cost import Addends, ExitRegions, LayerCost, PartialSumCosts, measure_layer
from edgepart.planner.layers.search_nodes import SearchNode
from edgepart.planner.layerwise.elimination import Table
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole, part, cut_tiles
from edgepart.planner.layout.strategy import Parted
from edgepart.planner.region import Region
from edgepart.planner.search.memo import Memo

Indices = np.ndarray[Any, np.dtype[np.int64]]

LEAST_S = 1e-12
"""For layers that cost nothing: views."""


class TensorRegions:
    """Which region of one tensor each device has (or reads), by configuration."""

    def __init__(self, rows: Sequence[Sequence[Region | None]]) -> None:
        """One row for each configuration, with an entry for each device."""
        distinct = {id(region): region for row in rows for region in row}
        ids: dict[Region | None, int] = {}
        places = {key: ids.setdefault(region, len(ids)) for key, region in distinct.items()}
        self.index: Indices = np.array([[places[id(region)] for region in row] for row in rows])
        self.regions: tuple[Region | None, ...] = tuple(ids)
        """Each once."""

    @cached_property
    def sizes(self) -> Table:
        """Elements, by configuration and device."""
        each = np.array([0.0 if region is None else float(region.size) for region in self.regions])
        found: Table = each[self.index]
        return found


@dataclass(frozen=True)
class ConfigurationTable:
    """Of one layer; arrays have one row for each configuration."""

    choices: tuple[Choice, ...]
    seconds: Table
    """The longest among the devices; `inf` where a device cannot hold the layer's weights."""
    addends: Table
    """Bytes of addends, by configuration, from each device to each; zero where nothing is summed."""
    weights: Table
    """Bytes of weights, by configuration, on all devices together: more than the layer has where several hold the same."""
    holds: tuple[TensorRegions, ...]
    """By exit."""
    reads: tuple[TensorRegions, ...]
    """By source."""


@dataclass(frozen=True)
class ConfigurationCost:
    """One configuration; by device."""

    held: list[ExitRegions]
    done: list[LayerCost]
    seconds: float
    addends: Table


class ConfigurationCosts:
    """Measures one layer: walks from its exits back to its sources, once for each region that some device may be
    given."""

    def __init__(self, memo: Memo, reach: SearchNode) -> None:
        self.memo = memo
        self.ground = memo.operator_costs
        self.reach = reach
        self.devices = memo.cluster.devices
        self.places = {device.name: n for n, device in enumerate(self.devices)}
        self.full = {name: memo.graph.tensors[name].region for name in reach.layer.exits}
        self.limits = [memo.limit_bytes(device.name) for device in self.devices]
        self.nothing = np.zeros((len(self.devices), len(self.devices)))
        self.timed = True
        self._portions = memo.portions.setdefault(reach.layer.number, {})
        self._rows: dict[Choice, ConfigurationCost] = {}
        self._given: dict[Choice, list[ExitRegions]] = {}
        self._parted: dict[tuple[str, Parted], PartialSumCosts] = {}

    @cached_property
    def whole(self) -> LayerCost:
        """What a device does that holds everything."""
        return self._portion(tuple(self.full.values()))

    def speeds(self) -> dict[str, float]:
        """By device, layers like this one that it computes in a second."""
        named = zip(self.devices, self.whole_s, strict=True)
        return {device.name: 1 / max(seconds, LEAST_S) for device, seconds in named}

    def measure(self, choices: Sequence[Choice], timed: bool = True) -> ConfigurationTable:
        """The footprint under each of `choices`; not `timed`, it has no seconds."""
        self.timed = timed
        rows = [self.row(choice) for choice in choices]
        exits, sources = self.reach.layer.exits, self.reach.sources
        return ConfigurationTable(
            tuple(choices),
            np.array([row.seconds for row in rows]),
            np.stack([row.addends for row in rows]),
            np.array([sum(done.weight_bytes for done in row.done) for row in rows]),
            tuple(TensorRegions([[held[n] for held in row.held] for row in rows]) for n in range(len(exits))),
            tuple(
                TensorRegions([[done.reads.get(name) for done in row.done] for row in rows])
                for name in sources
            ),
        )

    def row(self, choice: Choice) -> ConfigurationCost:
        """Under one configuration; remembered."""
        found = self._rows.get(choice)
        if found is None:
            found = self._rows[choice] = self._row(choice)
        return found

    def least_s(self, choice: Choice) -> float:
        """Seconds that a configuration takes at the very least: smaller parts go at no higher rate. Of sums, those of the
        operator that is parted."""
        if isinstance(choice, Reduce):
            return self._least_summed_s(choice)
        whole = self.whole_s
        return max(
            seconds * min(_part(one, full) for one, full in zip(held, self.full.values(), strict=True))
            for held, seconds in zip(self._held(choice), whole, strict=True)
        )

    def _least_summed_s(self, choice: Reduce) -> float:
        """Of the longest part."""
        found = part(self.reach.layer, choice)
        if found is None:
            return 0.0
        op, parted = found
        extent = max(one.stop for _, one in parted.parts)
        return max(
            self.memo.seconds_on(name)[op] * (one.stop - one.start) / extent for name, one in parted.parts
        )

    @cached_property
    def whole_s(self) -> tuple[float, ...]:
        """By device, seconds of everything."""
        return tuple(map(self.whole.seconds, self.devices))

    def _row(self, choice: Choice) -> ConfigurationCost:
        held = self._held(choice.then if isinstance(choice, Reduce) else choice)
        parted = part(self.reach.layer, choice) if isinstance(choice, Reduce) else None
        if parted is not None:
            return self._summed(held, *parted)
        done = [self._portion(one) for one in held]
        return ConfigurationCost(held, done, self._longest(enumerate(done)), self.nothing)

    def _held(self, choice: Choice) -> list[ExitRegions]:
        found = self._given.get(choice)
        if found is None:
            found = self._given[choice] = self._laid(choice)
        return found

    def _laid(self, choice: Choice) -> list[ExitRegions]:
        if isinstance(choice, Whole):
            given = [dict.fromkeys(choice.devices, region) for region in self.full.values()]
        elif isinstance(choice, Divide):
            given = [cut_tiles(name, region, self.reach.layer, choice) for name, region in self.full.items()]
        else:
            raise ValueError(f"{choice} is no configuration: a layer's regions would hang on its readers'")
        return [tuple(regions.get(device.name) for regions in given) for device in self.devices]

    def _portion(self, held: ExitRegions, without: str | None = None) -> LayerCost:
        key = (held, without)
        found = self._portions.get(key)
        if found is None:
            named = {n: r for n, r in zip(self.full, held, strict=True) if r is not None and not r.is_empty}
            found = self._portions[key] = measure_layer(self.ground, self.reach, named, without)
        return found

    def _longest(self, done: Iterator[tuple[int, LayerCost]]) -> float:
        """Seconds, of portions by device; `inf` where one does not fit."""
        if not self.timed:
            return 0.0
        return max(
            float("inf") if one.weight_bytes > self.limits[n] else one.seconds(self.devices[n])
            for n, one in done
        )

    def _summed(self, held: list[ExitRegions], name: str, parted: Parted) -> ConfigurationCost:
        """Each device makes the addends of its part; then the rest of the layer is computed where it is held."""
        sums = self._sums(name, parted)
        rest = [self._portion(one, name) for one in held]
        made: dict[int, Addends] = {}
        addends = self.nothing.copy()
        for target, region in self._combined(sums, held, rest):
            combining, wanted = sums.combine(region)
            rest[target] += combining
            for source, regions in wanted.items():
                addends[source, target] = sums.nbytes(regions) if source != target else 0.0
                mine = made.setdefault(source, {})
                for k, addend in regions.items():
                    mine[k] = mine[k].union_spans(addend) if k in mine else addend
        first = {source: sums.make(source, wanted) for source, wanted in made.items()}
        seconds = self._longest(iter(first.items())) + self._longest(enumerate(rest))
        return ConfigurationCost(
            held, [one + first[n] if n in first else one for n, one in enumerate(rest)], seconds, addends
        )

    def _sums(self, name: str, parted: Parted) -> PartialSumCosts:
        key = (name, parted)
        if key not in self._parted:
            parts = [(self.places[device], one) for device, one in parted.parts]
            op = self.ground.graph.by_name[name]
            self._parted[key] = PartialSumCosts(self.ground, self.reach, op, parted.axis, parts)
        return self._parted[key]

    def _combined(self, sums: PartialSumCosts, held: list[ExitRegions], rest: list[LayerCost]) -> Iterator[tuple[int, Region]]:
        """By device, what of the parted operator's output it makes out of addends."""
        name, exits = sums.op.outputs[0], self.reach.layer.exits
        for n, one in enumerate(rest):
            region = held[n][exits.index(name)] if name in exits else one.reads.get(name)
            if region is not None and not region.is_empty:
                yield n, region


def _part(region: Region | None, full: Region) -> float:
    """Of the elements of a tensor, the part that is in `region`."""
    return 0.0 if region is None else region.size / max(1, full.size)
