"""Footprint: what a layer costs and touches under each of its configurations: seconds, what each device holds of its
exits and reads of its sources. Everything comes from regions and access maps. Rules only: numpy, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from edgepart.planner.access.bound import numpy_dtype
from edgepart.planner.access.language import Outputs, Reduction
from edgepart.planner.cost import Work
from edgepart.planner.division import Choice, Divide, Reduce, Whole, compact, part, tiles
from edgepart.planner.elimination import Table
from edgepart.planner.graph import Operator
from edgepart.planner.layout import Parted
from edgepart.planner.partial import addends_wanted, read_again, reduced_axis
from edgepart.planner.reach import Reach
from edgepart.planner.region import Region
from edgepart.planner.study import Study

Indices = np.ndarray[Any, np.dtype[np.int64]]


class Spread:
    """Which region of one tensor each device has (or reads), by configuration."""

    def __init__(self, rows: Sequence[Sequence[Region | None]]) -> None:
        """One row for each configuration, with an entry for each device."""
        ids: dict[Region | None, int] = {}
        self.index: Indices = np.array([[ids.setdefault(r, len(ids)) for r in row] for row in rows])
        self.regions: tuple[Region | None, ...] = tuple(ids)
        """Each once."""

    def only(self, kept: Sequence[int]) -> Spread:
        """Of some configurations."""
        one = Spread([])
        one.regions, one.index = self.regions, self.index[list(kept)]
        return one

    @cached_property
    def sizes(self) -> Table:
        """Elements, by configuration and device."""
        each = np.array([0.0 if r is None else float(r.size) for r in self.regions])
        found: Table = each[self.index]
        return found


@dataclass(frozen=True)
class Footprint:
    """Of one layer; arrays have one row for each configuration."""

    choices: tuple[Choice, ...]
    seconds: Table
    """The longest among the devices; `inf` where a device cannot hold the layer's weights."""
    addends: tuple[Table, ...]
    """Bytes of addends from each device to each; all zero where nothing is summed."""
    holds: tuple[Spread, ...]
    """By exit."""
    reads: tuple[Spread, ...]
    """By source."""

    def only(self, kept: Sequence[int]) -> Footprint:
        """With some of the configurations."""
        return Footprint(
            tuple(self.choices[n] for n in kept),
            self.seconds[list(kept)],
            tuple(self.addends[n] for n in kept),
            tuple(one.only(kept) for one in self.holds),
            tuple(one.only(kept) for one in self.reads),
        )


@dataclass
class _Part:
    """What one device does of a layer, whichever device it is."""

    works: list[Work] = field(default_factory=list)
    weight_bytes: float = 0.0
    reads: dict[str, Region] = field(default_factory=dict)
    """By tensor; those of the layer's own operators too."""
    seconds: Mapping[tuple[Any, ...], float] = field(default_factory=dict)


class Walker:
    """Measures one layer: walks from its exits back to its sources, once for each region that some device may be
    given."""

    def __init__(self, study: Study, reach: Reach) -> None:
        self.study = study
        self.reach = reach
        self.graph = study.graph
        self.devices = study.cluster.devices
        self.places = {device.name: n for n, device in enumerate(self.devices)}
        self.full = {name: self.graph.tensors[name].region for name in reach.layer.exits}
        self._parts: dict[tuple[Region | None, ...], _Part] = {}

    def speeds(self) -> dict[str, float]:
        """By device, layers like this one that it computes in a second."""
        whole = self._part(tuple(self.full.values()))
        return {d.name: 1 / max(sum(work.on(d) for work in whole.works), 1e-12) for d in self.devices}

    def measure(self, choices: Sequence[Choice]) -> Footprint:
        """The footprint under each of `choices`."""
        rows = [self._row(choice) for choice in choices]
        exits, sources = self.reach.layer.exits, self.reach.sources
        return Footprint(
            tuple(choices),
            np.array([row.seconds for row in rows]),
            tuple(row.addends for row in rows),
            tuple(Spread([[held[n] for held in row.held] for row in rows]) for n in range(len(exits))),
            tuple(Spread([[done.reads.get(name) for done in row.done] for row in rows]) for name in sources),
        )

    def _row(self, choice: Choice) -> _Row:
        held = self._held(choice.then if isinstance(choice, Reduce) else choice)
        parted = part(self.reach.layer, choice) if isinstance(choice, Reduce) else None
        if parted is not None:
            return self._summed(held, *parted)
        done = [self._part(one) for one in held]
        seconds = max(self._seconds(one, n) for n, one in enumerate(done))
        return _Row(held, done, seconds, np.zeros((len(done), len(done))))

    def _held(self, choice: Choice) -> list[tuple[Region | None, ...]]:
        """By device, its region of each exit."""
        if isinstance(choice, Whole):
            given = [dict.fromkeys(choice.devices, region) for region in self.full.values()]
        elif isinstance(choice, Divide):
            given = [tiles(name, region, self.reach.layer, choice) for name, region in self.full.items()]
        else:
            raise ValueError(f"{choice} is no configuration: a layer's regions would hang on its readers'")
        return [tuple(regions.get(device.name) for regions in given) for device in self.devices]

    def _part(self, held: tuple[Region | None, ...]) -> _Part:
        found = self._parts.get(held)
        if found is None:
            found = self._parts[held] = self._walk(held)
        return found

    def _walk(self, held: tuple[Region | None, ...], parted: str | None = None) -> _Part:
        """What a device does for its regions of the exits; nothing of the operator `parted`, and what it reads."""
        done = _Part()
        wanted = {n: r for n, r in zip(self.full, held, strict=True) if r is not None and not r.is_empty}
        for op in self.reach.operators:
            outputs = {}
            for index, name in enumerate(op.outputs):
                region = wanted.get(name) if name in self.full else done.reads.get(name)
                if region is not None:
                    outputs[index] = region if name in self.full else compact(region)
            if outputs and op.name != parted:
                self._compute(op, outputs, done)
        return done

    def _compute(self, op: Operator, outputs: Outputs, done: _Part) -> None:
        access = self.study.coarse.accesses[op.name]
        work = self.study.cost.work(op, access, outputs)
        if work.flops or work.nbytes:
            done.works.append(work)
        self._read(zip(op.inputs, access.needs(outputs), strict=True), done)
        self._read(((name, self.graph.region_of(name)) for name in op.captured), done)

    def _read(self, pairs: Iterator[tuple[str, Region | None]], done: _Part) -> None:
        for name, region in pairs:
            if region is None or not name:
                continue
            if name in self.graph.constants:
                done.weight_bytes += region.size * self.study.cost.item_bytes(name)
            elif not region.is_empty:
                before = done.reads.get(name)
                done.reads[name] = region if before is None else before.union_spans(region)

    def _seconds(self, done: _Part, place: int) -> float:
        device = self.devices[place]
        if done.weight_bytes > self.study.limit_bytes(device.name):
            return float("inf")
        return sum(work.on(device) for work in done.works)

    def _summed(self, held: list[tuple[Region | None, ...]], name: str, parted: Parted) -> _Row:
        """Each device makes the addends of its part; then the rest of the layer is computed where it is held."""
        op = self.graph.by_name[name]
        access = self.study.coarse.accesses[name]
        reduction = access.reduction(reduced_axis(op, access, parted.axis))
        done = [self._walk(one, parted=name) for one in held]
        combined = self._combined(op, held, done)
        addends = np.zeros((len(done), len(done)))
        parts = [one for _, one in parted.parts]
        wanted = addends_wanted(reduction, parts, combined)
        first = [0.0] * len(done)
        for (device, one), outputs in zip(parted.parts, wanted, strict=True):
            place, making = self.places[device], _Part()
            access = reduction.part(one)
            self._read(zip(op.inputs, access.needs(outputs), strict=False), making)
            nbytes = _addend_bytes(reduction, outputs) + self._bytes(making)
            making.works.append(Work(access.flops(outputs), nbytes, access.family))
            first[place] = self._seconds(making, place)
            self._read(iter(making.reads.items()), done[place])
        combine = reduction.combine(tuple(parts))
        for device, region in combined.items():
            place = self.places[device]
            self._read(((op.inputs[i], r) for i, r in read_again(reduction, len(parts), region)), done[place])
            each = addends_wanted(reduction, parts, {device: region})
            for (source, _), outputs in zip(parted.parts, each, strict=True):
                addends[self.places[source], place] = _addend_bytes(reduction, outputs)
            nbytes = float(addends[:, place].sum()) + region.size * self.study.cost.item_bytes(op.outputs[0])
            done[place].works.append(Work(combine.flops({0: region}), nbytes, combine.family))
        last = [self._seconds(one, place) for place, one in enumerate(done)]
        np.fill_diagonal(addends, 0.0)
        return _Row(held, done, max(first) + max(last), addends)

    def _combined(
        self, op: Operator, held: list[tuple[Region | None, ...]], done: list[_Part]
    ) -> dict[str, Region]:
        """By device, what of the parted operator's output it makes out of addends."""
        name = op.outputs[0]
        exit = list(self.full).index(name) if name in self.full else None
        found = (
            (d.name, done[n].reads.get(name) if exit is None else held[n][exit])
            for n, d in enumerate(self.devices)
        )
        return {device: region for device, region in found if region is not None and not region.is_empty}

    def _bytes(self, making: _Part) -> float:
        item_bytes = self.study.cost.item_bytes
        return making.weight_bytes + sum(r.size * item_bytes(name) for name, r in making.reads.items())


@dataclass(frozen=True)
class _Row:
    """One configuration."""

    held: list[tuple[Region | None, ...]]
    """By device and exit."""
    done: list[_Part]
    """By device."""
    seconds: float
    addends: Table


def _addend_bytes(reduction: Reduction, outputs: Outputs) -> float:
    return sum(
        float(region.size * numpy_dtype(reduction.addends[k].dtype).itemsize) for k, region in outputs.items()
    )
