"""MoDNN (Mao et al., DATE 2017): each layer is divided into tiles along the longer edge of its feature map,
in proportion to the devices' speed; after every layer the tiles meet at one device, which hands out the
next ones.

Layers without rows or columns run whole on that device."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Whole
from edgepart.planner.layout.strategy import Strategy, Sync
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import run_alone

SPATIAL = ("height", "width", "depth")


@register("modnn")
def candidates(study: Study) -> Iterator[Strategy]:
    """The strategies with the fastest device as the hub, and with the gateway as the hub."""
    for hub in dict.fromkeys((study.memo.by_speed[0], study.memo.problem.gateway)):
        yield tiles(study, hub)


def tiles(study: Study, hub: str) -> Strategy:
    """The strategy that divides every layer that has an edge to cut over all devices."""
    shares = study.memo.shares(study.memo.by_speed)
    choices: dict[int, Choice] = {}
    split = 0
    for layer in study.memo.layers:
        axis = edge(study.memo, layer)
        if axis is None:
            choices[layer.number] = Whole((hub,))
        else:
            choices[layer.number] = Divide((axis,), shares)
            split += 1
    if not split or len(shares) == 1:
        return run_alone(study, hub, "modnn", "no layer has an edge to cut into tiles for several devices; ")
    why = f"{split} of {len(study.memo.layers)} layers are cut into tiles, which meet at {hub} after every layer"
    return study.candidates.make("modnn", choices, why, Sync.HUB, hub)


def edge(memo: Memo, layer: Layer) -> str | None:
    """The axis to cut: the forced one, or the longer edge of the feature map; None if there is none."""
    wanted = (memo.problem.axis,) if memo.problem.axis else SPATIAL
    found = [a for a in layer.axes if a.name in wanted and layer.splits(a.name)]
    return max(found, key=lambda a: a.extent).name if found else None
