"""Model parallelism, OptCNN's second baseline (Jia, Lin, Qi, Aiken, section 6): the parameters of each layer are
distributed over all devices, so that each computes its part of the layer's channels (features, heads).

Ours: parts are in proportion to speed; what has no such axis is whole, on one device or on all, by simulation."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.data import divide_layers
from edgepart.planner.strategies.registry import register

COLUMNS = {"channel": "by channels", "feature": "by features", "head": "by heads"}
"""Axes along which a layer's parameters lie, and how a layer is then divided."""


@register("model")
def candidates(study: Study) -> Iterator[Strategy]:
    """Channels over all devices."""
    yield from divide_layers(study, "model", column, COLUMNS, "no layer has channels or features to divide; ")


def column(layer: Layer) -> str | None:
    """The axis along which its parameters lie."""
    return next((name for name in COLUMNS if layer.splits(name)), None)
