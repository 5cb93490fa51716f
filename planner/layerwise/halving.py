"""Halving: the ways to cut one layer in two over the two halves of each group of devices, one level after
another (Tofu's basic strategies, applied recursively). Rules only.

At each level a choice is about groups of devices, and the first device stands for its group; at the last
level a group is one device. Our addition is for what cannot be cut: a layer without axes is on one half of
the devices, or on both. A layer that is divided along a reduced axis at one level is divided along it at all
levels, and its sum is in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from edgepart.planner.access.declare.protocol import Axis
from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Shares, Whole, middle

Takes = Callable[[Axis], bool]
"""Whether layers may be cut along an axis."""

PAYLOAD = 1e6
"""The bytes of the message whose seconds compare links."""


@dataclass(frozen=True)
class Team:
    """The devices that take part, in the order in which they are halved."""

    shares: Shares
    """Each device and its part, in that order."""

    @cached_property
    def levels(self) -> tuple[Shares, ...]:
        """The groups of each level, each as its first device and the sum of its members' parts. The last
        level has a group for each device."""
        return tuple(_levels((self.shares,)))


def _levels(groups: tuple[Shares, ...]) -> Iterator[Shares]:
    while any(len(group) > 1 for group in groups):
        groups = tuple(half for group in groups for half in _halves(group))
        yield tuple((group[0][0], sum(share for _, share in group)) for group in groups)


def _halves(group: Shares) -> tuple[Shares, ...]:
    return (group[: middle(len(group))], group[middle(len(group)) :]) if len(group) > 1 else (group,)


def order_near_first(cluster: Cluster, devices: Sequence[str]) -> tuple[str, ...]:
    """The devices in an order in which those with quick links between them are neighbours, and are separated
    last. Groups are joined over the quickest link between any two of their devices, in the given order if
    links are equal."""

    def seconds(pair: tuple[str, str]) -> float:
        links = (cluster.link(*pair), cluster.link(*reversed(pair)))
        return max(link.latency_s + PAYLOAD / link.bytes_per_s for link in links)

    group_of = {name: [name] for name in devices}
    for one, two in sorted(combinations(devices, 2), key=seconds):
        if group_of[one] is not group_of[two]:
            both = sorted((group_of[one], group_of[two]), key=lambda group: devices.index(group[0]))
            joined = both[0] + both[1]
            group_of.update(dict.fromkeys(joined, joined))
    return tuple(group_of[devices[0]])


def list_cuts(
    layer: Layer, before: Choice | None, team: Team, level: int, takes: Takes
) -> tuple[Choice, ...]:
    """The ways to cut, over its two halves, what each group of the level before `level` has: `before`, or
    None for everything at level 0. There is always at least one."""
    groups = team.levels[level]
    match before:
        case None:
            return tuple(_first(layer, groups, takes))
        case Divide():
            return tuple(_along(_outer(layer, takes), before.axes, groups))
        case Whole(devices):
            return tuple(_place(devices, team, level))
        case Reduce(axis, _, Divide(axes)):
            found = _along(_pieces(layer, axis, takes), axes, groups)
            return tuple(Reduce(axis, groups, then) for then in found)
        case Reduce(axis, _, Whole(devices)):
            return tuple(Reduce(axis, groups, then) for then in _place(devices, team, level))
    raise ValueError(f"{before} is no way to cut a layer in two")


def _first(layer: Layer, groups: Shares, takes: Takes) -> Iterator[Choice]:
    """Yield the ways to cut a whole layer. It stays whole only if it cannot be cut, or not without sums."""
    names = tuple(name for name, _ in groups)
    whole = (Whole(names[:1]), Whole(names[1:]), Whole(names))
    found: list[Choice] = list(_along(_outer(layer, takes), (), groups))
    for _, axis in layer.reduced:
        if takes(axis) and layer.reduces(axis.name):
            pieces = _pieces(layer, axis.name, takes)
            found += (
                Reduce(axis.name, groups, then) for then in (_along(pieces, (), groups) if pieces else whole)
            )
    yield from found
    if not found or not any(layer.splits(axis.name) for axis in layer.axes):
        yield from whole


def least_part(layer: Layer, levels: int, takes: Takes) -> tuple[float, dict[str, float]]:
    """The least that each of 2^levels equal devices computes, however the layer is cut: the part of the whole
    layer if no sums are divided, and the parts of the operators whose sums may be divided. 0 if a device may
    compute nothing."""
    outer = [axis for axis in _outer(layer, takes) if None not in (layer.place(axis, x) for x in layer.exits)]
    lost = len(outer) < len(_outer(layer, takes))
    # If one axis is long enough at each level, no short axis is ever cut, and every device gets a part.
    always = any(axis.extent >= axis.quantum << levels for axis in outer)
    part = _least(outer, levels) if always and not lost else 0.0
    sums: dict[str, float] = {}
    for name in {axis.name for _, axis in layer.reduced if takes(axis)}:
        found = layer.reduces(name)
        if found is not None:
            op, axis = found
            sums[op] = min(sums.get(op, 1.0), _smallest_part(axis, 1 << levels))
    return part, sums


def _least(axes: Sequence[Axis], levels: int) -> float:
    """The smallest part that any way of cutting `levels` times along the axes can give."""
    if not axes:
        return 0.0 if levels else 1.0
    times = [k for k in range(levels + 1) if k == 0 or axes[0].extent >= axes[0].quantum << k]
    rest = [(k, _least(axes[1:], levels - k)) for k in times]
    return min((_smallest_part(axes[0], 1 << k) * part for k, part in rest if part), default=0.0)


def _smallest_part(axis: Axis, parts: int) -> float:
    """The share of the axis in the smallest of `parts` equal parts; the last unit of the axis may be smaller."""
    units = -(-axis.extent // axis.quantum) // parts
    return max(0, units * axis.quantum - (-axis.extent % axis.quantum)) / axis.extent


def _outer(layer: Layer, takes: Takes) -> list[Axis]:
    return [axis for axis in layer.axes if layer.splits(axis.name) and takes(axis)]


def _pieces(layer: Layer, reduced: str, takes: Takes) -> list[Axis]:
    """The axes along which a sum can be cut: those that `takes` allows, or all of them if it allows none."""
    among = [axis for axis in layer.combined if axis.name == reduced] + list(layer.axes)
    there = [axis for axis in among if axis.extent >= 2 * axis.quantum]
    return [axis for axis in there if takes(axis)] or there


def _along(axes: Sequence[Axis], before: tuple[str, ...], groups: Shares) -> Iterator[Divide]:
    """Yield one more cut along each axis that is long enough for it, or along every axis if none is."""
    long = [axis for axis in axes if axis.extent >= axis.quantum * 2 ** (before.count(axis.name) + 1)]
    yield from (Divide((*before, axis.name), groups) for axis in long or axes)


def _place(devices: tuple[str, ...], team: Team, level: int) -> Iterator[Whole]:
    """Yield the layer whole on either half of the group that has it; on all groups if all have it."""
    names, before = ([name for name, _ in team.levels[n]] for n in (level, level - 1))
    if len(devices) > 1:
        yield Whole(tuple(names))
        return
    yield Whole(devices)
    half = names.index(devices[0]) + 1
    yield from (Whole((name,)) for name in names[half : half + 1] if name not in before)
