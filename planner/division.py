"""Choices for layers, and the layouts that follow from them. Rules only.

A strategy takes one choice for every layer: divide its exits along an axis, place it whole, or leave it to
its readers (which recompute the halo that they need). Everything else follows, back to front, from the
access maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgepart.planner.access.language import Axis
from edgepart.planner.fusion import Coarse, Layer
from edgepart.planner.graph import Operator
from edgepart.planner.layout import Layout
from edgepart.planner.region import Region, span


@dataclass(frozen=True)
class Divide:
    """Each exit divided along axes, in proportion; two axes make a grid."""

    axes: tuple[str, ...]
    """Names of axes of the layer; one, or two for a grid."""
    shares: tuple[tuple[str, float], ...]
    """Device and its part, in order along the axis; need not sum to one. For a grid, row by row."""
    grid: tuple[int, ...] = ()
    """How many parts along each axis; () for one axis."""
    widened: bool = False
    """Whether a device also computes what its own next layers need of its neighbours' parts, so that they
    fetch nothing."""


@dataclass(frozen=True)
class Whole:
    """All of it on each of these devices."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Pull:
    """Each device computes what the layers after it need there, halo included."""


Choice = Divide | Whole | Pull


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


def layouts(coarse: Coarse, choices: Mapping[int, Choice]) -> dict[str, Layout]:
    """A layout for every tensor that an operator writes, from a choice for every layer that has exits."""
    return _Back(coarse, choices).run()


class _Back:
    """One walk from the last operator to the first (BBGraP, section 3.2)."""

    def __init__(self, coarse: Coarse, choices: Mapping[int, Choice]) -> None:
        self.coarse = coarse
        self.graph = coarse.graph
        self.choices = choices
        self.exits = {n: layer for layer in coarse.layers for n in layer.exits}
        self.needed: dict[str, dict[str, Region]] = {name: {} for name in self.graph.tensors}
        self.needed_by_parts: dict[str, dict[str, Region]] = {name: {} for name in self.graph.tensors}
        """Without what is needed for layers that are whole: that is all of it, and is no halo."""
        self.for_whole: set[tuple[str, str]] = set()
        """Pulled tensors and devices where a layer that is whole reads them."""

    def run(self) -> dict[str, Layout]:
        found: dict[str, Layout] = {}
        for op in reversed(self.graph.operators):
            written = {i: self._regions(name) for i, name in enumerate(op.outputs) if name}
            if self.coarse.accesses[op.name].opaque is not None:
                written = self._all_or_nothing(op, written)
            for index, regions in written.items():
                found[op.outputs[index]] = Layout(regions)
            for device in dict.fromkeys(d for regions in written.values() for d in regions):
                self._reach_back(op, {i: r[device] for i, r in written.items() if device in r}, device)
        return found

    def _regions(self, name: str) -> dict[str, Region]:
        """What each device computes of one tensor."""
        layer = self.exits.get(name)
        choice = self.choices.get(layer.number, Pull()) if layer else Pull()
        if isinstance(choice, Whole):
            return dict.fromkeys(choice.devices, self.graph.tensors[name].region)
        if isinstance(choice, Divide) and layer:
            found = _divided(self.graph.tensors[name].region, layer, choice)
            return self._widened(name, found) if choice.widened else found
        if name in self.graph.outputs:
            raise ValueError(f"output {name!r} of the model cannot be left to its readers")
        return {device: region.hull() for device, region in self.needed[name].items()}

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

    def _reach_back(self, op: Operator, outputs: dict[int, Region], device: str) -> None:
        needs = self.coarse.accesses[op.name].needs(outputs)
        wanted = [(name, region) for name, region in zip(op.inputs, needs, strict=True) if region is not None]
        wanted += [(name, self.graph.region_of(name)) for name in op.captured]
        whole = isinstance(self.choices.get(self.coarse.layer_of[op.name]), Whole) or any(
            (op.outputs[index], device) in self.for_whole for index in outputs
        )
        for name, region in wanted:
            if name not in self.needed or region.is_empty:
                continue
            _add(self.needed[name], device, region)
            if whole:
                self.for_whole.add((name, device))
            else:
                _add(self.needed_by_parts[name], device, region)


def _add(regions: dict[str, Region], device: str, region: Region) -> None:
    before = regions.get(device)
    regions[device] = region if before is None or before == region else before.union_spans(region)


def _divided(region: Region, layer: Layer, choice: Divide) -> dict[str, Region]:
    axes = [axis for name in choice.axes if (axis := layer.axis(name)) is not None]
    if len(axes) < len(choice.axes):
        raise ValueError(
            f"layer {layer.number} has no axes {choice.axes}, only {[a.name for a in layer.axes]}"
        )
    cuts = _grid(axes, [share for _, share in choice.shares], choice.grid)
    found: dict[str, Region] = {}
    for (device, _), bounds in zip(choice.shares, cuts, strict=True):
        tile = region
        for axis, bound in zip(axes, bounds, strict=True):
            tile = tile.replace(axis.index, span(bound))
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
