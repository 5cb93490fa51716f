"""Model parallelism, OptCNN's second baseline (Jia, Lin, Qi, Aiken, section 6): the parameters of each layer
are distributed over all devices, so that each computes its part of the layer's channels (features, heads).

Our additions: parts are in proportion to speed; a layer without such an axis is whole, on one device or on
all, by simulation."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.data import divide_layers
from edgepart.planner.strategies.registry import register

COLUMNS = {"channel": "by channels", "feature": "by features", "head": "by heads"}
"""The axes along which a layer's parameters lie, and words for a division along each."""


@register("model")
def candidates(study: Study) -> Iterator[Strategy]:
    """Divide channels over all devices."""
    yield from divide_layers(study, "model", column, COLUMNS, "no layer has channels or features to divide; ")


def column(layer: Layer) -> str | None:
    """The axis along which the layer's parameters lie; None if it has none."""
    return next((name for name in COLUMNS if layer.splits(name)), None)
