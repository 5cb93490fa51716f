"""Configurations: the ways to divide one layer that a layer-wise search compares (OptCNN, section 4).

Input is a layer and the devices; output is choices, whose costs configuration_cost.py works out. Rules only.

As in the paper, a layer is divided along any axes of its output, into any number of parts along each. Our
additions: only numbers and groups of devices that are worth it, parts in proportion to speed, the layer whole
on one device or on all, and parts of a sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

from edgepart.planner.access.declare.protocol import Axis
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Shares, Whole
from edgepart.planner.search.candidates import ALIKE_AXES
from edgepart.planner.search.memo import Memo

MOST_CONFIGURATIONS = 24
"""The most configurations of one layer in a quick search, whose time grows with their third power."""


def max_configurations(devices: int) -> int:
    """The most configurations of one layer in a quick search for `devices` devices: few devices have few ways
    to share it that are worth it.

    >>> [max_configurations(count) for count in (2, 4, 8, 32)]
    [12, 16, 20, 24]
    """
    return min(MOST_CONFIGURATIONS, 8 + 4 * (devices - 1).bit_length())


FEW = 4
"""The most devices of which each number is tried if they differ; of more, all of them, a half, a quarter ..."""

SUMS = 2
"""The number of teams over which sums are divided: the largest and the smallest."""

Speeds = Mapping[str, float]
"""How fast each device computes one layer, in any unit."""


@dataclass(frozen=True)
class ConfigurationSpace:
    """The settings that the configurations of all layers share."""

    devices: tuple[str, ...]
    """Fastest first."""
    teams: tuple[tuple[str, ...], ...]
    """Groups of at least two devices, the largest first."""
    shares: Mapping[str, float]
    """Each device's part of the whole model."""
    gateway: str
    most: int | None
    """The most configurations of one layer that are compared; None for all."""
    axis: str | None = None
    """The only axis to divide, together with those that stand for it elsewhere
    (planner/search/candidates.py); None for all axes."""

    def takes(self, axis: Axis) -> bool:
        return self.axis is None or axis.name in (self.axis, *ALIKE_AXES.get(self.axis, ()))


def make_space(memo: Memo, whole: bool = False) -> ConfigurationSpace:
    """The space for the problem of `memo`: the `whole` one, or what a quick search compares of it."""
    devices, shares = memo.by_speed, dict(memo.shares(memo.by_speed))
    most = None if whole else max_configurations(len(devices))
    return ConfigurationSpace(
        devices, tuple(_teams(memo)), shares, memo.problem.gateway, most, memo.problem.axis
    )


def _teams(memo: Memo) -> Iterator[tuple[str, ...]]:
    """Yield the k fastest and the k best connected devices, for several k, each in the order of their speed."""
    fast, gateway, link = memo.by_speed, memo.problem.gateway, memo.cluster.link
    near = sorted(fast, key=lambda name: (-link(name, gateway).bytes_per_s, link(name, gateway).latency_s))
    sizes = [len(fast)]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] - 1 if len(fast) <= FEW and not _alike(memo) else -(-sizes[-1] // 2))
    found = (tuple(sorted(order[:n], key=fast.index)) for n in sizes if n > 1 for order in (fast, near))
    yield from dict.fromkeys(found)


def _alike(memo: Memo) -> bool:
    """Whether all devices and all links are equal, so that only the number of devices matters."""
    names, link = memo.by_speed, memo.cluster.link
    links = {link(a, b) for a, b in combinations(names, 2)}
    return len(links) <= 1 and len({memo.whole_s[name] for name in names}) == 1


def list_configurations(
    layer: Layer, among: ConfigurationSpace, speeds: Speeds, sums: bool = True
) -> tuple[Choice, ...]:
    """All choices that are compared for `layer`, each once, whole ones first. Parts are in proportion to
    `speeds`; the parts that the whole model would have are tried too, so that neighbours can agree. Without
    `sums`, no reduced axis is divided."""
    found: dict[Choice, None] = dict.fromkeys(Whole((name,)) for name in among.devices)
    if len(among.devices) > 1:
        found[Whole(among.devices)] = None
    if not layer.opaque:
        axes = [axis for axis in layer.axes if layer.splits(axis.name) and among.takes(axis)]
        for team in among.teams:
            found |= dict.fromkeys(_divide(axes, team, among, speeds))
        for team in dict.fromkeys((*among.teams[: SUMS - 1], *among.teams[-1:])) if sums else ():
            found |= dict.fromkeys(_sum(layer, axes, team, among, speeds))
    return tuple(found)


def _divide(
    axes: Sequence[Axis], team: tuple[str, ...], among: ConfigurationSpace, speeds: Speeds
) -> Iterator[Divide]:
    """Yield divisions along each axis, and every grid over several axes, that have a part for every device of the team."""
    for axis in axes:
        if axis.extent >= len(team) * axis.quantum:
            own, common = _shares(team, speeds), _shares(team, among.shares)
            yield Divide((axis.name,), own)
            if _differ(own, common, axis):
                yield Divide((axis.name,), common)
    for count in range(2, len(axes) + 1):
        for several in combinations(axes, count):
            for grid in grids(len(team), count):
                if all(a.extent >= n * a.quantum for a, n in zip(several, grid, strict=True)):
                    yield Divide(tuple(axis.name for axis in several), _shares(team, among.shares), grid)


def _sum(
    layer: Layer, axes: Sequence[Axis], team: tuple[str, ...], among: ConfigurationSpace, speeds: Speeds
) -> Iterator[Reduce]:
    """Yield divisions along each reduced axis; the sum is then whole on every device, or in pieces."""
    shares = _shares(team, speeds)
    for _, axis in layer.reduced:
        if layer.reduces(axis.name) and among.takes(axis) and axis.extent >= len(team) * axis.quantum:
            yield Reduce(axis.name, shares, Whole(team))
            pieces = next((a for a in axes if a.extent >= len(team) * a.quantum), None)
            if pieces is not None:
                yield Reduce(axis.name, shares, Divide((pieces.name,), shares))


def _shares(team: Sequence[str], speeds: Speeds) -> Shares:
    total = sum(speeds[name] for name in team)
    return tuple((name, round(speeds[name] / total, 4)) for name in team)


def _differ(one: Shares, two: Shares, axis: Axis) -> bool:
    """Whether a cut of one lies half a unit or more from that of the other."""
    units = axis.extent / axis.quantum
    ends = zip(_ends(one), _ends(two), strict=True)
    return any(abs(a - b) * units >= 0.5 for a, b in ends)


def _ends(shares: Shares) -> list[float]:
    sums = list(accumulate(share for _, share in shares))
    return [end / sums[-1] for end in sums]


def grids(parts: int, axes: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of all grids of `parts` parts with at least two along each of `axes` axes: the degrees of
    parallelism of the paper's section 4.

    >>> grids(8, 2), grids(8, 3), grids(7, 2)
    (((2, 4), (4, 2)), ((2, 2, 2),), ())
    """
    if axes == 1:
        return ((parts,),) if parts > 1 else ()
    first = (n for n in range(2, parts // 2 + 1) if parts % n == 0)
    return tuple((n, *others) for n in first for others in grids(parts // n, axes - 1))


def select_configurations(
    choices: Sequence[Choice], seconds: Sequence[float], kept: Callable[[Choice], bool], places: int
) -> tuple[int, ...]:
    """Indices of the choices to compare, in order. A choice that takes several devices as long as one alone
    is dominated; of more than `places` others, those that take least remain. Choices that `kept` accepts stay
    in any case."""
    alone = [s for choice, s in zip(choices, seconds, strict=True) if is_on_one_device(choice)]
    least = min(alone, default=float("inf"))
    always = {n for n, choice in enumerate(choices) if kept(choice)}
    rest = [
        n
        for n in range(len(choices))
        if n not in always and (is_on_one_device(choices[n]) or seconds[n] < least)
    ]
    rest.sort(key=lambda n: (seconds[n], n))
    return tuple(sorted({*always, *rest[: max(0, places - len(always))]}))


def is_on_one_device(choice: Choice) -> bool:
    """Whether one device alone has the whole layer."""
    return isinstance(choice, Whole) and len(choice.devices) == 1
