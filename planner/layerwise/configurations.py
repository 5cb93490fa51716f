"""Configurations: the ways to divide one layer that a layer-wise search weighs (OptCNN, section 4).

Takes a layer and the devices; gives choices, of which configuration_cost.py works out what each costs. Rules only.

As in the paper, any axis of a layer's output, or two of them as a grid, over any number of devices. Ours: the
numbers and groups of devices that are worth it, parts in proportion to speed, the layer whole on one device or on
all, and parts of a sum."""

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
"""Configurations of one layer, at most: the search takes time with their third power."""


def max_configurations(devices: int) -> int:
    """Configurations of one layer for so many devices, at most: few devices share a layer in few ways that are worth it.

    >>> [max_configurations(count) for count in (2, 4, 8, 32)]
    [12, 16, 20, 24]
    """
    return min(MOST_CONFIGURATIONS, 8 + 4 * (devices - 1).bit_length())


FEW = 4
"""Devices up to which each number of them is tried where they differ; of more, all, half of them, a quarter ..."""

SUMS = 2
"""Numbers of devices over which sums are parted: all, and the fewest."""

Speeds = Mapping[str, float]
"""By device, how fast it computes one layer; any unit."""


@dataclass(frozen=True)
class ConfigurationSpace:
    """What the configurations of all layers have in common."""

    devices: tuple[str, ...]
    """Fastest first."""
    teams: tuple[tuple[str, ...], ...]
    """Groups of at least two devices, the largest first."""
    shares: Mapping[str, float]
    """By device, its part of the whole model."""
    gateway: str
    axis: str | None = None
    """Only this one, and what goes by it elsewhere (planner/search/candidates.py); None for all."""

    def takes(self, axis: Axis) -> bool:
        return self.axis is None or axis.name in (self.axis, *ALIKE_AXES.get(self.axis, ()))


def make_space(memo: Memo) -> ConfigurationSpace:
    """The space for the problem of `memo`."""
    shares = dict(memo.shares(memo.by_speed))
    return ConfigurationSpace(
        memo.by_speed, tuple(_teams(memo)), shares, memo.problem.gateway, memo.problem.axis
    )


def _teams(memo: Memo) -> Iterator[tuple[str, ...]]:
    """The k fastest and the k best connected devices, in the order of their speed."""
    fast, gateway, link = memo.by_speed, memo.problem.gateway, memo.cluster.link
    near = sorted(fast, key=lambda name: (-link(name, gateway).bytes_per_s, link(name, gateway).latency_s))
    sizes = [len(fast)]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] - 1 if len(fast) <= FEW and not _alike(memo) else -(-sizes[-1] // 2))
    found = (tuple(sorted(order[:n], key=fast.index)) for n in sizes if n > 1 for order in (fast, near))
    yield from dict.fromkeys(found)


def _alike(memo: Memo) -> bool:
    """Whether any number of devices is as good as any other of so many."""
    names, link = memo.by_speed, memo.cluster.link
    links = {link(a, b) for a, b in combinations(names, 2)}
    return len(links) <= 1 and len({memo.whole_s[name] for name in names}) == 1


def list_configurations(
    layer: Layer, among: ConfigurationSpace, speeds: Speeds, sums: bool = True
) -> tuple[Choice, ...]:
    """All choices that are weighed for `layer`, each once, whole ones first. `speeds` say how parts are proportioned;
    the parts that the whole model would have are tried too, so that neighbours can agree. Without `sums`, no
    reduced axis is parted."""
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
    """Along each axis with a part for everybody, and along each two."""
    for axis in axes:
        if axis.extent >= len(team) * axis.quantum:
            own, common = _shares(team, speeds), _shares(team, among.shares)
            yield Divide((axis.name,), own)
            if _differ(own, common, axis):
                yield Divide((axis.name,), common)
    for one, two in combinations(axes, 2):
        for rows, columns in grids(len(team)):
            if one.extent >= rows * one.quantum and two.extent >= columns * two.quantum:
                yield Divide((one.name, two.name), _shares(team, among.shares), (rows, columns))


def _sum(
    layer: Layer, axes: Sequence[Axis], team: tuple[str, ...], among: ConfigurationSpace, speeds: Speeds
) -> Iterator[Reduce]:
    """Along each reduced axis; what is summed is then whole with everybody, or in pieces."""
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
    """Whether a cut moves by half a unit or more."""
    units = axis.extent / axis.quantum
    ends = zip(_ends(one), _ends(two), strict=True)
    return any(abs(a - b) * units >= 0.5 for a, b in ends)


def _ends(shares: Shares) -> list[float]:
    sums = list(accumulate(share for _, share in shares))
    return [end / sums[-1] for end in sums]


def grids(count: int) -> tuple[tuple[int, int], ...]:
    """The shapes of a grid of `count` parts that are nearest to a square.

    >>> grids(8), grids(9), grids(7)
    (((2, 4), (4, 2)), ((3, 3),), ())
    """
    rows = max((r for r in range(2, int(count**0.5) + 1) if count % r == 0), default=None)
    if rows is None:
        return ()
    return tuple(dict.fromkeys(((rows, count // rows), (count // rows, rows))))


def select_configurations(
    choices: Sequence[Choice], seconds: Sequence[float], kept: Callable[[Choice], bool], places: int
) -> tuple[int, ...]:
    """Indices of those that are weighed, in order: what takes several devices as long as one could do it alone is
    dominated; of more than `places`, those that take least. What `kept` says stays in any case."""
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
    """Whether one device does it all."""
    return isinstance(choice, Whole) and len(choice.devices) == 1
