"""DeepThings (Zhao, Barijough, Gerstlauer, TCAD 2018): fused tile partitioning. The layers from the input
to some layer are one block; its output is cut into tiles, and each device computes everything that its tile
needs, borders that overlap with its neighbours' included, so that nothing travels inside the block. The
rest runs whole on one device.

Simulation chooses the layer that ends the block, and whether tiles are a row, a column or a grid."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.planner.layout.choices import Choice, Divide, Whole
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.memo import CutPoint, Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import run_alone

CUTS_TRIED = 6
"""The ends of the block that are simulated for each shape of tiles, evenly spread over the model's arithmetic."""


@register("deepthings")
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield blocks of several lengths, each with each shape of tiles; each device alone if no block can be cut."""
    count = len(study.memo.by_speed)
    shapes = ((study.memo.problem.axis,),) if study.memo.problem.axis else shapes_of(study.memo)
    made = 0
    for cut in spread_cuts(study.memo, CUTS_TRIED) if count > 1 else ():
        for axes in shapes:
            strategy = fuse_block(study, cut, axes)
            if strategy is not None:
                made += 1
                yield strategy
    if not made:
        for device in study.memo.by_speed:
            yield run_alone(
                study, device, "deepthings", "no block of layers can be cut into tiles for several devices; "
            )


def shapes_of(memo: Memo) -> tuple[tuple[str, ...], ...]:
    """The axes of each shape of tiles: along the longer edge of most layers, and a grid."""
    longer = sum((layer.extent("height") > layer.extent("width")) * 2 - 1 for layer in memo.layers)
    return (("height",) if longer >= 0 else ("width",), ("height", "width"))


def spread_cuts(memo: Memo, count: int) -> tuple[CutPoint, ...]:
    """At most `count` cut points, evenly spread by the seconds before them; the last cut point is always included."""
    cuts = [cut for cut in memo.cut_points if cut.seconds > 0]
    if len(cuts) <= count:
        return tuple(cuts)
    wanted = [cuts[-1].seconds * (n + 1) / count for n in range(count)]
    return tuple(dict.fromkeys(_nearest(cuts, seconds) for seconds in wanted))


def _nearest(cuts: list[CutPoint], seconds: float) -> CutPoint:
    return min(cuts, key=lambda cut: (abs(cut.seconds - seconds), len(cut.crossing)))


def fuse_block(study: Study, cut: CutPoint, axes: tuple[str, ...]) -> Strategy | None:
    """The strategy with the block up to `cut` fused; None if a tensor that crosses the cut cannot be divided
    along `axes`."""
    devices = study.memo.by_speed
    grid = find_grid(len(devices)) if len(axes) == 2 else ()
    if grid is None:
        return None
    tiles = Divide(axes, study.memo.shares(devices), grid, widened=True)
    choices: dict[int, Choice] = {}
    for layer in study.memo.layers:
        if study.memo.last_position[layer.number] > cut.position:
            choices[layer.number] = Whole((devices[0],))
        elif not cut.crossing.isdisjoint(layer.exits):
            if not all(map(layer.splits, axes)):
                return None
            choices[layer.number] = tiles
        else:
            rest = tiles if all(map(layer.splits, axes)) else Whole((devices[0],))
            choices[layer.number] = study.candidates.pull(layer) or rest
    why = (
        f"the layers up to {cut.last!r} are one block of {len(devices)} tiles along {' and '.join(axes)},"
        f" with overlapping borders computed twice; the rest runs on {devices[0]}"
    )
    return study.candidates.make("deepthings", choices, why)


def find_grid(count: int) -> tuple[int, int] | None:
    """The grid of `count` tiles that is nearest to a square; None if they only make a row.

    >>> find_grid(6), find_grid(7)
    ((2, 3), None)
    """
    rows = max((r for r in range(2, int(count**0.5) + 1) if count % r == 0), default=None)
    return None if rows is None else (rows, count // rows)
