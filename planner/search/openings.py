"""Openings: recipes that divide the whole model and are worth a try before any search. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgepart.planner.layout.choices import Shares
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.recipe import SPATIAL, WHOLE, LayerStretch, Mode, Recipe

ENDS_TRIED = 3
"""The number of positions that are tried as the end of a first part that is divided by rows; the rest is whole."""

AXES = 4
"""The number of axes that are tried; the axes that most layers have come first."""


def axes_of(memo: Memo) -> tuple[str, ...]:
    """The forced axis, or the axes that are tried."""
    forced = memo.problem.axis
    return (forced,) if forced is not None else memo.axis_names[:AXES]


def openings(memo: Memo, parts: Sequence[LayerStretch]) -> Iterator[Recipe]:
    """Yields recipes for each group of devices: one axis throughout, mixtures of axes, and stretches on one
    device after another."""
    for devices in teams(memo):
        shares = memo.shares(devices)
        for modes in _modes(memo, parts, shares):
            yield Recipe(modes, shares, devices[0])
        yield _in_turn(parts, shares)


def teams(memo: Memo) -> Iterator[tuple[str, ...]]:
    """Yields groups of devices that are worth a try: the fastest few and the best connected few. The group of
    all devices comes first."""
    fast = memo.by_speed
    gateway = memo.problem.gateway

    def worse_rate(name: str) -> float:
        links = memo.cluster.link(name, gateway), memo.cluster.link(gateway, name)
        return min(link.bytes_per_s for link in links)

    near = tuple(sorted(fast, key=lambda name: (-worse_rate(name), fast.index(name))))
    sizes = [
        n for n in range(len(fast), 1, -1) if n <= 4 or n == len(fast) or n in (6, 8, 12, 16, 24, 32, 64, 128)
    ]
    found = dict.fromkeys(
        tuple(sorted(order[:size], key=fast.index)) for size in sizes for order in (fast, near)
    )
    yield from found


def _modes(memo: Memo, parts: Sequence[LayerStretch], shares: Shares) -> Iterator[tuple[Mode, ...]]:
    count, axes = len(parts), axes_of(memo)
    rows = [axis for axis in axes if axis in SPATIAL]
    dense = Mode("channel") if "channel" in axes else WHOLE
    for axis in axes:
        if len(shares) < len(memo.by_speed) or memo.problem.axis is not None:
            yield (Mode(axis),) * count  # Over all devices, these are the strategies bbgrap and data.
    for axis in rows:
        tall = [_is_tall(memo, part, axis, len(shares)) for part in parts]
        for tail, fused in ((dense, False), (WHOLE, False), (dense, True)):
            yield tuple(Mode(axis, fused) if t else tail for t in tall)
    for axis in rows[:1]:
        for n in range(1, ENDS_TRIED + 1):
            end = count * n // (ENDS_TRIED + 1)
            yield (*(Mode(axis),) * end, *(WHOLE,) * (count - end))


def _is_tall(memo: Memo, stretch: LayerStretch, axis: str, count: int) -> bool:
    """Whether layers with enough rows for every device do most of the stretch's work."""
    tall = [la for la in stretch.layers if (a := la.axis(axis)) is not None and a.extent >= 2 * count]
    seconds = sum(memo.fastest_s[op.name] for layer in tall for op in layer.operators)
    return seconds * 2 > stretch.seconds


def _in_turn(parts: Sequence[LayerStretch], shares: Shares) -> Recipe:
    """A recipe that puts the stretches on one device after another, in proportion to the shares: for memory
    and for throughput."""
    total, done, at = sum(p.seconds for p in parts), 0.0, 0
    ends = [sum(s for _, s in shares[: n + 1]) / sum(s for _, s in shares) for n in range(len(shares))]
    modes = []
    for part in parts:
        while at < len(shares) - 1 and done + part.seconds / 2 > ends[at] * total:
            at += 1
        modes.append(Mode(home=shares[at][0]))
        done += part.seconds
    return Recipe(tuple(modes), shares, shares[0][0])
