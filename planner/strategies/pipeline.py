"""Pipeline: the model's layers in stages, each whole on a device of its own, in the order and at the places
that make the busiest device the least busy (planner/placing/chain_partition.py). One request does not become
faster; many do, as the stages work on different requests at the same time. No device needs the memory for all
layers.

A device is busy with a stage for the longest of computing it, receiving what crosses into it and sending what
crosses out of it. For a chain of layers this is exact. If a tensor is read several stages later, the stages
between are charged for it although it does not pass through them; the simulation does not do so, and decides
how many devices take part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgepart.planner.layout.choices import Choice, Whole
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.placing.chain_partition import Loads, Stages, balance
from edgepart.planner.search.candidates import CandidateFactory
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.recipe import LayerStretch, stretches
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.deepthings import spread_cuts
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import run_alone

CUTS = 63
"""The most places to cut that are tried, evenly spread over the model's work."""


@register("pipeline")
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield the best stages for two devices, for three, and so on; each device alone if the model cannot be cut."""
    made = 0
    for strategy in place_in_stages(study):
        made += 1
        yield strategy
    if not made:
        for device in study.memo.by_speed:
            yield run_alone(
                study, device, "pipeline", "there is no place to part the model for several devices; "
            )


def place_in_stages(study: Study, name: str = "pipeline", devices: Sequence[str] = ()) -> Iterator[Strategy]:
    """Yield strategies with stages on two or more of `devices`, or of all devices; fewer devices first."""
    parts = stretches(study.memo, spread_cuts(study.memo, CUTS))
    devices = devices or study.memo.by_speed
    if len(parts) < 2 or len(devices) < 2:
        return
    loads = [_loads(study.memo, device, parts) for device in devices]
    for found in balance(loads):
        if len(found.stages) > 1:
            yield _strategy(study.candidates, parts, devices, found, name)


def _strategy(
    candidates: CandidateFactory,
    parts: Sequence[LayerStretch],
    devices: Sequence[str],
    found: Stages,
    name: str,
) -> Strategy:
    choices: dict[int, Choice] = {}
    total = sum(part.seconds for part in parts) or 1.0
    said = []
    for number, begin, end in found.stages:
        device = devices[number]
        said.append(f"{sum(part.seconds for part in parts[begin:end]) / total:.0%} on {device}")
        for part in parts[begin:end]:
            choices.update((layer.number, Whole((device,))) for layer in part.layers)
    return candidates.make(
        name, choices, f"one stage after another, each on one device: {', then '.join(said)}"
    )


def _loads(memo: Memo, device: str, parts: Sequence[LayerStretch]) -> Loads:
    """[from, to]: seconds that the device is busy with those stretches; inf if it has no room for their weights."""
    seconds = np.cumsum([0.0, *(_seconds(memo, device, part) for part in parts)])
    weights = np.cumsum([0.0, *(_weights(memo, part) for part in parts)])
    busy = seconds[None, :] - seconds[:, None] + memo.cost.segment_s(device)
    crossing = [memo.graph.request_inputs, *(sorted(part.crossing) for part in parts)]
    moved = np.array([_nbytes(memo, names) for names in crossing], float)
    if device == memo.problem.gateway:
        moved[0] = moved[-1] = 0.0
    moved /= memo.cluster.card_bytes_per_s[device]
    busy = np.maximum(busy, np.maximum(moved[:, None], moved[None, :]))
    return np.where(weights[None, :] - weights[:, None] <= memo.limit_bytes(device), busy, np.inf)


def _nbytes(memo: Memo, names: Sequence[str]) -> float:
    """The bytes of the tensors; a shape that is known only at run time counts 0."""
    known = [memo.graph.tensors[name] for name in names if name in memo.graph.tensors]
    ends = {*memo.graph.request_inputs, *memo.graph.answer_outputs}
    return sum(
        tensor.region.size * (tensor.item_bytes if tensor.name in ends else memo.travel_bytes(tensor.name))
        for tensor in known
        if tensor.shape is not None
    )


def _seconds(memo: Memo, device: str, part: LayerStretch) -> float:
    """The seconds that the device takes to compute the stretch."""
    return sum(memo.seconds_on(device)[op.name] for layer in part.layers for op in layer.operators)


def _weights(memo: Memo, part: LayerStretch) -> float:
    """The bytes of the constants that the stretch reads."""
    constants = memo.graph.constants
    names = {n for layer in part.layers for op in layer.operators for n in op.inputs if n in constants}
    return float(sum(constants[name].nbytes for name in names))
