"""Choices for layers: how devices share one layer. Facts, and the rules that cut regions accordingly.

A strategy makes one choice for every layer: divide its exits along an axis, place it whole, part a sum, or
leave it to its readers, which recompute the halo that they need. Everything else follows from the choices,
back to front (propagate.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lcm

from edgepart.planner.access.declare.protocol import Axis
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.strategy import Layout, Parted
from edgepart.planner.region import Interval, Region, span

Shares = tuple[tuple[str, float], ...]
"""Devices and the share of each. Shares need not sum to one."""


@dataclass(frozen=True)
class Divide:
    """Divides each exit along axes, in proportion to the shares. Several axes make a grid, or halves of halves."""

    axes: tuple[str, ...]
    """Names of axes of the layer: one axis, several different ones for a grid, or for halves one axis for each
    level of cuts, repeated if necessary."""
    shares: Shares
    """Each device and its part, in order along the axis; parts need not sum to one. For a grid, the devices of
    the first part along the first axis come first, and among these those of the first part along the second;
    for halves, the devices of the first half come first."""
    grid: tuple[int, ...] = ()
    """The number of parts along each axis, whose product is the number of devices. () for one axis, and for
    halves: the devices and the exit are cut in two along the first axis, and each half again along the next
    axis, until one device is left."""
    widened: bool = False
    """Whether a device also computes what its own next layers need of its neighbours' parts, so that they
    fetch nothing."""
    aligned: bool = False
    """Whether a device instead computes exactly what its own next layers need, provided that all devices
    together then compute everything, and nothing twice. Channels that a Concat, a Split or a shuffle moves
    elsewhere then stay on their devices."""


@dataclass(frozen=True)
class Whole:
    """Each of these devices computes all of the layer."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Pull:
    """Each device computes what its next layers need, halo included."""


@dataclass(frozen=True)
class Reduce:
    """Parts an operator of the layer along a reduced axis: each device makes the addends of its part."""

    axis: str
    """Name of a reduced axis of the layer."""
    shares: Shares
    """Each device and its part, in order along the axis; parts need not sum to one."""
    then: Divide | Whole
    """How the addends are combined and the rest of the layer is computed: in pieces (a reduce-scatter), or
    completely on each of some devices (an all-reduce)."""
    quantum: int = 1
    """Parts begin at multiples of this number: the features of one head, for example, if the input arrives
    divided by heads."""


Choice = Divide | Whole | Pull | Reduce


@dataclass(frozen=True)
class PropagatedLayouts:
    """The results of a choice for every layer."""

    layouts: Mapping[str, Layout]
    """The region that each device computes of each tensor that an operator writes, by name of the tensor."""
    parted: Mapping[str, Parted]
    """The parts of each operator that is parted along a reduced axis, by name."""
    reads: Mapping[str, Mapping[str, Region]]
    """The region that each device reads to compute its regions, by tensor and device."""


COMPACT = 1.5
"""The box around a region is computed instead of the region if its elements are at most this multiple of the
region's."""


def divide(extent: int, shares: Sequence[float], quantum: int = 1) -> tuple[tuple[int, int], ...]:
    """The bounds of the parts of `extent`, cut in proportion to `shares` at multiples of `quantum`. An empty part has
    bounds (a, a).

    With equal shares this is BBGraP's Equation 1: the floor for each part, and the remainder round robin.

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


def compact(region: Region) -> Region:
    """The box around a region if it is hardly larger, else the region itself. Local nodes compute boxes, and
    join a region with gaps from several."""
    box = region.hull()
    return box if box.size <= COMPACT * region.size else region


def part(layer: Layer, choice: Reduce) -> tuple[str, Parted] | None:
    """The operator that `choice` parts, and its parts; None if one device would get everything. Raises
    ValueError if the layer lacks the axis."""
    found = layer.reduces(choice.axis)
    if found is None:
        raise ValueError(f"layer {layer.number} has no reduced axis {choice.axis!r} that can be parted")
    op, axis = found
    cuts = divide(axis.extent, [share for _, share in choice.shares], lcm(axis.quantum, choice.quantum))
    named = zip(choice.shares, cuts, strict=True)
    parts = tuple((device, Interval(*cut)) for (device, _), cut in named if cut[0] < cut[1])
    return (op, Parted(choice.axis, parts)) if len(parts) > 1 else None


def cut_tiles(name: str, region: Region, layer: Layer, choice: Divide) -> dict[str, Region]:
    """Each device's part of the exit `name`, whose full region is `region`. Raises ValueError if the layer
    lacks an axis."""
    axes = [axis for name in choice.axes if (axis := layer.axis(name)) is not None]
    if len(axes) < len(choice.axes):
        raise ValueError(
            f"layer {layer.number} has no axes {choice.axes}, only {[a.name for a in layer.axes]}"
        )
    places = [layer.place(axis, name) for axis in axes]
    if None in places:
        return {choice.shares[0][0]: region}
    shares = tuple(share for _, share in choice.shares)
    cuts = _cuts(tuple(axes), shares, choice.grid)
    found: dict[str, Region] = {}
    for (device, _), bounds in zip(choice.shares, cuts, strict=True):
        spans = list(region.spans)
        for axis, place, bound in zip(axes, places, bounds, strict=True):
            assert place is not None
            spans[place] = span(layer.bounds(axis, name, bound))
        tile = Region(tuple(spans))
        if not tile.is_empty:
            found[device] = tile
    return found


@lru_cache(maxsize=1 << 14)
def _cuts(
    axes: tuple[Axis, ...], shares: tuple[float, ...], grid: tuple[int, ...]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Bounds along each axis, for each device. The result is cached because many layers have the same shape,
    and are cut in the same few ways."""
    if len(axes) > 1 and not grid:
        return tuple(_halves(axes, shares, {axis.name: (0, axis.extent) for axis in axes}))
    return tuple(_grid(axes, shares, grid or (len(shares),)))


def _grid(
    axes: Sequence[Axis], shares: Sequence[float], grid: Sequence[int]
) -> list[tuple[tuple[int, int], ...]]:
    """Bounds along each axis, for each device. Each part along the first axis is cut along the others by the
    shares of its own devices."""
    if not axes:
        return [()]
    each = len(shares) // grid[0]
    groups = [shares[start : start + each] for start in range(0, len(shares), each)]
    cuts = divide(axes[0].extent, [sum(group) for group in groups], axes[0].quantum)
    return [
        (bounds, *others)
        for group, bounds in zip(groups, cuts, strict=True)
        for others in _grid(axes[1:], group, grid[1:])
    ]


def _halves(
    axes: Sequence[Axis], shares: Sequence[float], within: Mapping[str, tuple[int, int]], level: int = 0
) -> list[tuple[tuple[int, int], ...]]:
    """Bounds along each axis, for each device. Cuts of one axis are nested, so that each device has one
    interval of it; `within` are the bounds of the axes so far. Raises ValueError if more than one device is
    left after the last axis."""
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
    """The size of the first half of `count` things: the larger half if `count` is odd."""
    return -(-count // 2)
