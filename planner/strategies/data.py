"""Data parallelism, OptCNN's first baseline (Jia, Lin, Qi, Aiken, section 6): each device has a copy of the
model and computes its part of the batch.

Our additions: parts are in proportion to speed, and a layer without a batch is whole, on one device or on
all, by simulation. If the batch is 1, its only sample goes to one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from edgepart.planner.errors import UsageError
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Whole
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.bbgrap import KNOWN_AXES
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import run_alone

Wanted = Callable[[Layer], str | None]
"""A function that returns the axis along which a layer is to be divided; None leaves it whole."""


@register("data")
def candidates(study: Study) -> Iterator[Strategy]:
    """Divide the batch over all devices; yield each device alone if there is nothing to divide."""
    none = "no layer has a batch of more than one to divide, so one device gets it all; "
    yield from divide_layers(study, "data", lambda layer: "batch", {"batch": "by the batch"}, none)


def divide_layers(
    study: Study, name: str, wanted: Wanted, words: Mapping[str, str], none: str, because: str = ""
) -> Iterator[Strategy]:
    """Yield the candidates of the strategy `name`: each layer is divided along its `wanted` axis over all
    devices; the other layers are whole, on the fastest device or on all. `words` say for each axis how a
    layer is divided, `none` says why no layer is divided, and `because` begins the reason.

    Raises UsageError for a forced axis that the model does not have. With a forced axis, a layer is divided
    only if that is its `wanted` axis."""
    forced, devices = study.memo.problem.axis, study.memo.by_speed
    if forced is not None and forced not in (*KNOWN_AXES, *study.memo.axis_names):
        raise UsageError(
            f"axis {forced!r}: this model has {', '.join(study.memo.axis_names) or 'none to split'}"
        )
    shares = study.memo.shares(devices)
    split: dict[int, Choice] = {}
    counts: dict[str, int] = {}
    for layer in study.memo.layers:
        axis = wanted(layer)
        if axis is not None and forced in (None, axis) and layer.splits(axis) and len(devices) > 1:
            split[layer.number] = Divide((axis,), shares)
            counts[words[axis]] = counts.get(words[axis], 0) + 1
    if not split:
        reason = none if len(devices) > 1 else "there is only one device; "
        yield from (run_alone(study, device, name, reason) for device in devices)
        return
    layers = ", ".join(f"{count} {how}" for how, count in counts.items())
    for homes, where in ((devices[:1], f"on {devices[0]}"), (devices, "with everybody")):
        choices = {layer.number: split.get(layer.number, Whole(homes)) for layer in study.memo.layers}
        rest = f", the rest is whole {where}" if len(split) < len(choices) else ""
        why = f"{because}of {len(choices)} layers {layers} are divided over {len(devices)} devices{rest}"
        yield study.candidates.make(name, choices, why)
        if len(split) == len(choices):
            return
