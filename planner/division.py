"""Choices for layers, and the layouts that follow from them. Rules only.

A strategy takes one choice for every layer: divide its exits along an axis, place it whole, or leave it to
its readers (which recompute the halo that they need). Everything else follows, back to front, from the
access maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from edgepart.planner.access.language import Axis
from edgepart.planner.fusion import Coarse, Layer
from edgepart.planner.graph import Operator
from edgepart.planner.layout import Layout, Parted
from edgepart.planner.partial import addends_wanted, read_again, reduced_axis
from edgepart.planner.region import Interval, Region, span


@dataclass(frozen=True)
class Divide:
    """Each exit divided along axes, in proportion; two axes make a grid, or any number halves of halves."""

    axes: tuple[str, ...]
    """Names of axes of the layer; one, two for a grid, or for halves one after another, the same again if need be."""
    shares: tuple[tuple[str, float], ...]
    """Device and its part, in order along the axis; need not sum to one. For a grid, row by row; for halves, those of
    the first half first."""
    grid: tuple[int, ...] = ()
    """How many parts along each axis. () for one axis, and for halves: the devices and the exit along the first axis are
    cut in two, each half again along the next axis, until one device is left."""
    widened: bool = False
    """Whether a device also computes what its own next layers need of its neighbours' parts, so that they
    fetch nothing."""
    aligned: bool = False
    """Whether a device computes what its own next layers need instead, wherever that computes all of it and nothing
    twice: channels that a Concat, a Split or a shuffle puts elsewhere then stay where they are."""


@dataclass(frozen=True)
class Whole:
    """All of it on each of these devices."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Pull:
    """Each device computes what the layers after it need there, halo included."""


@dataclass(frozen=True)
class Reduce:
    """An operator of it is parted along a reduced axis: each device makes the addends of its part."""

    axis: str
    """Name of a reduced axis of the layer."""
    shares: tuple[tuple[str, float], ...]
    """Device and its part, in order along the axis; need not sum to one."""
    then: Divide | Whole
    """Where the addends are combined, and the rest of the layer is computed: in pieces (a reduce-scatter), or all of
    it on each of some devices (an all-reduce)."""
    quantum: int = 1
    """Parts begin at multiples of this: of a head's features, where heads are what arrives divided."""


Choice = Divide | Whole | Pull | Reduce


@dataclass(frozen=True)
class Laid:
    """What follows from choices."""

    layouts: Mapping[str, Layout]
    """By tensor that an operator writes."""
    parted: Mapping[str, Parted]
    """By operator that is parted along a reduced axis."""
    needed: Mapping[str, Mapping[str, Region]]
    """By tensor and device, what the device reads of it to compute what it holds."""


COMPACT = 1.5
"""The box around a region over the region, in elements, up to which the box is computed."""


def divide(extent: int, shares: Sequence[float], quantum: int = 1) -> tuple[tuple[int, int], ...]:
    """`extent` cut in proportion to `shares`, on multiples of `quantum`; () bounds (a, a) where nothing is
    left.

    With equal shares this is BBGraP's Equation 1: the floor for everybody, and the remainder round robin.

    >>> divide(8, [1, 1, 1])
    ((0, 3), (3, 6), (6, 8))
    >>> divide(10, [3, 1], quantum=2)
    ((0, 8), (8, 10))
    """
    units = -(-extent // quantum)
    total = sum(shares)
    exact = [units * share / total for share in shares]
    counts = [int(part + 1e-9) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: units - sum(counts)]:
        counts[i] += 1
    ends = [min(extent, quantum * sum(counts[: i + 1])) for i in range(len(counts))]
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def lay_out(coarse: Coarse, choices: Mapping[int, Choice]) -> Laid:
    """A layout for every tensor that an operator writes, from a choice for every layer that has exits."""
    return _Back(coarse, choices).run()


class _Back:
    """One walk from the last operator to the first (BBGraP, section 3.2)."""

    def __init__(self, coarse: Coarse, choices: Mapping[int, Choice]) -> None:
        self.coarse = coarse
        self.graph = coarse.graph
        self.choices = choices
        self.exits = {n: layer for layer in coarse.layers for n in layer.exits}
        self.parted = dict(self._parted())
        self.needed: dict[str, dict[str, Region]] = {name: {} for name in self.graph.tensors}
        self.needed_by_parts: dict[str, dict[str, Region]] = {name: {} for name in self.graph.tensors}
        """Without what is needed for layers that are whole: that is all of it, and is no halo."""
        self.for_whole: set[tuple[str, str]] = set()
        """Pulled tensors and devices where a layer that is whole reads them."""

    def _parted(self) -> Iterator[tuple[str, Parted]]:
        for number, choice in self.choices.items():
            if isinstance(choice, Reduce) and (found := part(self.coarse.layers[number], choice)):
                yield found

    def run(self) -> Laid:
        found: dict[str, Layout] = {}
        for op in reversed(self.graph.operators):
            written = {i: self._regions(name) for i, name in enumerate(op.outputs) if name}
            if self.coarse.accesses[op.name].opaque is not None:
                written = self._all_or_nothing(op, written)
            for index, regions in written.items():
                found[op.outputs[index]] = Layout(regions)
            if op.name in self.parted:
                self._reach_back_parted(op, self.parted[op.name], written[0])
                continue
            for device in dict.fromkeys(d for regions in written.values() for d in regions):
                self._reach_back(op, {i: r[device] for i, r in written.items() if device in r}, device)
        return Laid(found, self.parted, self.needed)

    def _regions(self, name: str) -> dict[str, Region]:
        """What each device computes of one tensor."""
        layer = self.exits.get(name)
        choice = self.choices.get(layer.number, Pull()) if layer else Pull()
        choice = choice.then if isinstance(choice, Reduce) else choice
        if isinstance(choice, Whole):
            return dict.fromkeys(choice.devices, self.graph.tensors[name].region)
        if isinstance(choice, Divide) and layer:
            if choice.aligned and (needed := self._aligned(name, choice)):
                return needed
            found = tiles(name, self.graph.tensors[name].region, layer, choice)
            return self._widened(name, found) if choice.widened else found
        if name in self.graph.outputs:
            raise ValueError(f"output {name!r} of the model cannot be left to its readers")
        return {device: compact(region) for device, region in self.needed[name].items()}

    def _aligned(self, name: str, choice: Divide) -> dict[str, Region] | None:
        """What each device needs, where that is a partition of the tensor."""
        needed = self.needed_by_parts[name]
        full = self.graph.tensors[name].region
        if not set(needed) <= {device for device, _ in choice.shares} or self.needed[name] != needed:
            return None
        if sum(region.size for region in needed.values()) != full.size or full.subtract_all(needed.values()):
            return None
        return dict(needed)

    def _widened(self, name: str, regions: dict[str, Region]) -> dict[str, Region]:
        return {
            device: region.union_spans(self.needed_by_parts[name].get(device, region)).hull()
            for device, region in regions.items()
        }

    def _all_or_nothing(
        self, op: Operator, written: dict[int, dict[str, Region]]
    ) -> dict[int, dict[str, Region]]:
        """An opaque operator writes all its outputs, whole, wherever one of them is written."""
        devices = dict.fromkeys(device for regions in written.values() for device in regions)
        return {i: dict.fromkeys(devices, self.graph.tensors[op.outputs[i]].region) for i in written}

    def _reach_back_parted(self, op: Operator, parted: Parted, combined: Mapping[str, Region]) -> None:
        """Each device reads for its part what all that is combined needs of it."""
        access = self.coarse.accesses[op.name]
        reduction = access.reduction(reduced_axis(op, access, parted.axis))
        parts = [part for _, part in parted.parts]
        for (device, part), wanted in zip(
            parted.parts, addends_wanted(reduction, parts, combined), strict=True
        ):
            needs = reduction.part(part).needs(wanted) if wanted else ()
            for name, region in zip(op.inputs, needs, strict=False):
                self._need(name, device, region, whole=False)
        for device, region in combined.items():
            for index, again in read_again(reduction, len(parts), region):
                self._need(op.inputs[index], device, again, whole=False)

    def _reach_back(self, op: Operator, outputs: dict[int, Region], device: str) -> None:
        needs = self.coarse.accesses[op.name].needs(outputs)
        wanted = [(name, region) for name, region in zip(op.inputs, needs, strict=True) if region is not None]
        wanted += [(name, self.graph.region_of(name)) for name in op.captured]
        whole = isinstance(self.choices.get(self.coarse.layer_of[op.name]), Whole) or any(
            (op.outputs[index], device) in self.for_whole for index in outputs
        )
        for name, region in wanted:
            self._need(name, device, region, whole)

    def _need(self, name: str, device: str, region: Region | None, whole: bool) -> None:
        if region is None or name not in self.needed or region.is_empty:
            return
        _add(self.needed[name], device, region)
        if whole:
            self.for_whole.add((name, device))
        else:
            _add(self.needed_by_parts[name], device, region)


def _add(regions: dict[str, Region], device: str, region: Region) -> None:
    before = regions.get(device)
    regions[device] = region if before is None or before == region else before.union_spans(region)


def compact(region: Region) -> Region:
    """A box where that is hardly more: local nodes compute boxes, and put together what has gaps."""
    box = region.hull()
    return box if box.size <= COMPACT * region.size else region


def part(layer: Layer, choice: Reduce) -> tuple[str, Parted] | None:
    """The operator that `choice` parts, and its parts; None where one device would get all. ValueError where the
    layer lacks the axis."""
    found = layer.reduces(choice.axis)
    if found is None:
        raise ValueError(f"layer {layer.number} has no reduced axis {choice.axis!r} that can be parted")
    op, axis = found
    cuts = divide(axis.extent, [share for _, share in choice.shares], lcm(axis.quantum, choice.quantum))
    named = zip(choice.shares, cuts, strict=True)
    parts = tuple((device, Interval(*cut)) for (device, _), cut in named if cut[0] < cut[1])
    return (op, Parted(choice.axis, parts)) if len(parts) > 1 else None


def tiles(name: str, region: Region, layer: Layer, choice: Divide) -> dict[str, Region]:
    """By device, its part of the exit `name`, of which `region` is all; ValueError where the layer lacks an axis."""
    axes = [axis for name in choice.axes if (axis := layer.axis(name)) is not None]
    if len(axes) < len(choice.axes):
        raise ValueError(
            f"layer {layer.number} has no axes {choice.axes}, only {[a.name for a in layer.axes]}"
        )
    places = [layer.place(axis, name) for axis in axes]
    if None in places:
        return {choice.shares[0][0]: region}
    shares = [share for _, share in choice.shares]
    if len(axes) > 1 and not choice.grid:
        cuts = _halves(axes, shares, {axis.name: (0, axis.extent) for axis in axes})
    else:
        cuts = _grid(axes, shares, choice.grid)
    found: dict[str, Region] = {}
    for (device, _), bounds in zip(choice.shares, cuts, strict=True):
        tile = region
        for place, bound in zip(places, bounds, strict=True):
            assert place is not None
            tile = tile.replace(place, span(bound))
        if not tile.is_empty:
            found[device] = tile
    return found


def _grid(
    axes: Sequence[Axis], shares: Sequence[float], grid: Sequence[int]
) -> list[tuple[tuple[int, int], ...]]:
    """Bounds along each axis, for each device."""
    if len(axes) == 1:
        return [(bounds,) for bounds in divide(axes[0].extent, shares, axes[0].quantum)]
    rows, columns = grid
    lines = [shares[r * columns : (r + 1) * columns] for r in range(rows)]
    tall = divide(axes[0].extent, [sum(line) for line in lines], axes[0].quantum)
    return [
        (height, width)
        for height, line in zip(tall, lines, strict=True)
        for width in divide(axes[1].extent, line, axes[1].quantum)
    ]


def _halves(
    axes: Sequence[Axis], shares: Sequence[float], within: Mapping[str, tuple[int, int]], level: int = 0
) -> list[tuple[tuple[int, int], ...]]:
    """Bounds along each axis, for each device; ValueError where devices are left and no axis. Cuts of one axis are
    nested, so that each device has one stretch of it; `within` are those of the axes so far."""
    if len(shares) == 1:
        return [tuple(within[axis.name] for axis in axes)]
    if level == len(axes):
        raise ValueError(f"{len(axes)} axes are not enough to tell all devices apart")
    axis, (start, stop) = axes[level], within[axes[level].name]
    halves = shares[: middle(len(shares))], shares[middle(len(shares)) :]
    cuts = divide(stop - start, [sum(half) for half in halves], axis.quantum)
    return [
        bounds
        for half, (low, high) in zip(halves, cuts, strict=True)
        for bounds in _halves(axes, half, {**within, axis.name: (start + low, start + high)}, level + 1)
    ]


def middle(count: int) -> int:
    """How many of `count` are in the first half: the larger one, where they are odd."""
    return -(-count // 2)
