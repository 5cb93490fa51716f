"""Divides a model that no device has the memory for, for `auto`, and finds the smallest memory that suffices.

Layers are put in stages that fit (fitting_stages.py). Most memory goes to weights, also while sessions are made. So the
fastest devices are filled; or the weights of every layer are divided, in pairs of dense layers or along channels; or
only the weights of layers that are too large for one device. A forecast says how much memory everything else takes; the
next forecast has that much less room for weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import ceil

import numpy as np

from edgepart.planner import figures
from edgepart.planner.cost.memory import whole_memory
from edgepart.planner.errors import Infeasible
from edgepart.planner.figures import format_bytes
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Shares, Whole
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.placing.chain_partition import Stages, balance
from edgepart.planner.search.dense_pairs import COLUMNS, pair_dense_layers
from edgepart.planner.search.force_axis import reduce
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.refusal import refuse
from edgepart.planner.search.stage_memory import owned_operators
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.fitting_stages import emptiest_stages, fit_in_stages
from edgepart.planner.strategies.single import run_alone

PLACES = 160
"""The most places at which a chain of layers may be cut; layers between two places stay together."""

ROUNDS = 3
"""The most forecasts of one way to divide, each with the room for weights that the one before has left."""

LARGE = (0.3, 0.05)
"""The limits that are tried, as parts of the smallest room for weights: layers with more weights are divided,
the others are placed."""

FEWEST_COLUMNS = 4
"""The fewest columns for each device: with fewer, parts are far from the devices' shares."""

TRIES = 6
"""The memory limits that are tried in search of the smallest that suffice."""

Rooms = Mapping[str, float]
"""The bytes for weights on each device."""


@dataclass(frozen=True)
class Weights:
    """The layers in order, and the bytes that sessions take for each one's weights."""

    layers: tuple[Layer, ...]
    nbytes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.nbytes)


@dataclass(frozen=True)
class LayerDivision:
    """One way to divide the layers over devices."""

    choices: Mapping[int, Choice]
    weight_bytes: Mapping[str, float]
    """The bytes of weights on each device."""
    why: str


Make = Callable[[Study, Weights, Rooms], LayerDivision | None]
"""Divides the layers, given the room on each device. Returns None if that is not possible."""

Tried = list[tuple[Mapping[int, Choice], Mapping[str, int]]]
"""The choices that did not fit, and the bytes that they take on each device."""


def candidates(study: Study, name: str = "auto", *, steady: bool = False) -> Iterator[Strategy]:
    """Yield divisions by speed, then as if all devices were alike. With `steady`, yield only the latter,
    which stay the same if speeds are measured anew. There are none for one device."""
    if len(study.memo.by_speed) < 2 or not study.memo.layers:
        return
    weights = weights_of(study.memo)
    if steady:
        yield from emptiest_stages(study, name, sorted(study.memo.by_speed))
    else:
        yield from fit_in_stages(study, name)
    ways: list[Make] = [fill_fastest]
    if study.memo.problem.axis is None:
        ways += [
            divide_in_pairs,
            divide_columns,
            *(partial(divide_large_layers, part=part) for part in LARGE),
        ]
    tried: Tried = []
    for seen in (_equalise_devices(study),) if steady else (study, _equalise_devices(study)):
        for make in ways:
            yield from _refine(study, partial(make, seen, weights), tried, name)


def _equalise_devices(study: Study) -> Study:
    """The study with devices that differ only in their memory."""
    devices = sorted(study.memo.cluster.devices, key=lambda device: device.name)
    like = (replace(devices[0], name=one.name, memory_bytes=one.memory_bytes) for one in devices)
    cluster = replace(study.memo.cluster, devices=tuple(like))
    return study.on(replace(study.memo.problem, cluster=cluster))


def weights_of(memo: Memo) -> Weights:
    """The layers in order, with what sessions take for their weights and operators, at most. A constant counts for the
    first layer that reads it; operators that a layer's devices compute for themselves belong to that layer."""
    layers = tuple(sorted(memo.layers, key=lambda layer: memo.last_position[layer.number]))
    owned, seen = owned_operators(memo), set[str]()
    nbytes = []
    for layer in layers:
        operators = owned.get(layer.number, ())
        nbytes.append(round(whole_memory(memo.graph, operators, besides=seen).most_bytes))
        seen.update(name for op in operators for name in op.inputs)
    return Weights(layers, tuple(nbytes))


def _refine(
    study: Study, make: Callable[[Rooms], LayerDivision | None], tried: Tried, name: str
) -> Iterator[Strategy]:
    """Yield one way to divide, again and again with the room that the last forecast showed, until it fits or
    no longer changes."""
    limits = {device: study.memo.limit_bytes(device) for device in study.memo.by_speed}
    rooms: Rooms = limits
    before: LayerDivision | None = None
    for _ in range(ROUNDS):
        way = make(rooms)
        if way is None or way == before:
            return
        peaks = next((peaks for choices, peaks in tried if choices == way.choices), None)
        if peaks is None:
            strategy = study.candidates.make(name, way.choices, way.why)
            yield strategy
            peaks = study.scorer.forecast(strategy).peak_memory_bytes
            if not study.scorer.short_bytes(strategy):
                return
            tried.append((way.choices, peaks))
        before = way
        rooms = {d: limit - peaks.get(d, 0) + way.weight_bytes.get(d, 0.0) for d, limit in limits.items()}


def divide_large_layers(study: Study, weights: Weights, rooms: Rooms, part: float) -> LayerDivision | None:
    """Divide large layers along their outputs, and place the others in the room that is left."""
    least, shares = part * min(rooms.values()), _by_room(rooms)
    chosen = [_divide(layer, shares) if size > least else None for layer, size in _each(weights)]
    large = sum(size for size, choice in zip(weights.nbytes, chosen, strict=True) if choice)
    if not large:
        return None
    divided = {layer.number: one for layer, one in zip(weights.layers, chosen, strict=True) if one}
    rest = [0 if choice else size for size, choice in zip(weights.nbytes, chosen, strict=True)]
    total = sum(share for _, share in shares)
    taken = {device: large * share / total for device, share in shares}
    left = {device: room - taken.get(device, 0.0) for device, room in rooms.items()}
    way = _chain(study.memo, weights, rest, left, divided)
    if way is None:
        return None
    weight_bytes = {device: way.weight_bytes.get(device, 0.0) + taken.get(device, 0.0) for device in rooms}
    return replace(
        way,
        weight_bytes=weight_bytes,
        why=f"{len(divided)} large layers are divided, and the others {way.why}",
    )


def _chain(
    memo: Memo, weights: Weights, nbytes: Sequence[int], rooms: Rooms, divided: Mapping[int, Choice]
) -> LayerDivision | None:
    devices = [device for device in memo.by_speed if rooms[device] > 0]
    if not devices:
        return None
    ends = np.cumsum([0, *nbytes])
    step = max(1, -(-len(nbytes) // PLACES))
    places = [*range(0, len(nbytes), step), len(nbytes)]
    between = ends[places][None, :] - ends[places][:, None]
    found = list(balance([between / rooms[device] for device in devices]))
    best = next((one for one in found if one.busiest <= 1), min(found, key=lambda one: one.busiest))
    return _in_stages(weights, nbytes, best, devices, places, divided)


def _in_stages(
    weights: Weights,
    nbytes: Sequence[int],
    found: Stages,
    devices: Sequence[str],
    places: Sequence[int],
    divided: Mapping[int, Choice],
) -> LayerDivision:
    choices: dict[int, Choice] = {}
    weight_bytes: dict[str, float] = {}
    for number, begin, end in found.stages:
        device, inside = devices[number], slice(places[begin], places[end])
        choices.update((layer.number, Whole((device,))) for layer in weights.layers[inside])
        weight_bytes[device] = float(sum(nbytes[inside]))
    said = ", then ".join(
        f"{figures.format_bytes(weight_bytes[devices[n]])} on {devices[n]}" for n, _, _ in found.stages
    )
    return LayerDivision(
        {**choices, **divided}, weight_bytes, f"layers are placed where their weights have room: {said}"
    )


def fill_fastest(study: Study, weights: Weights, rooms: Rooms) -> LayerDivision | None:
    """Fill the fastest device with as many layers as it has room for, then the next."""
    devices = [device for device in study.memo.by_speed if rooms[device] > 0]
    choices: dict[int, Choice] = {}
    weight_bytes = dict.fromkeys(devices, 0.0)
    waiting = list(devices)
    for layer, size in _each(weights):
        while len(waiting) > 1 and weight_bytes[waiting[0]] + size > rooms[waiting[0]]:
            waiting.pop(0)
        if not waiting:
            return None
        weight_bytes[waiting[0]] += size
        choices[layer.number] = Whole((waiting[0],))
    return LayerDivision(
        choices, weight_bytes, f"the fastest devices are filled first: {_describe(weight_bytes)}"
    )


def divide_in_pairs(study: Study, weights: Weights, rooms: Rooms) -> LayerDivision | None:
    """Divide columns of one dense layer and rows of the next, by speed as far as there is room."""
    shares = _by_speed(study.memo, weights, rooms)
    choices = pair_dense_layers(study.memo, shares) if len(shares) > 1 else None
    if choices is None:
        return None
    weight_bytes = _parts(weights, shares)
    return LayerDivision(
        choices, weight_bytes, f"weights of dense layers are divided in pairs: {_describe(weight_bytes)}"
    )


def divide_columns(study: Study, weights: Weights, rooms: Rooms) -> LayerDivision | None:
    """Divide every layer that has weights along its output, by speed as far as there is room."""
    shares = _by_speed(study.memo, weights, rooms)
    if len(shares) < 2:
        return None
    choices: dict[int, Choice] = {}
    for layer, size in _each(weights):
        divided = _divide(layer, shares) if size else None
        choices[layer.number] = divided or Whole((shares[0][0],))
    weight_bytes = _parts(weights, shares)
    return LayerDivision(
        choices, weight_bytes, f"every layer's weights are divided: {_describe(weight_bytes)}"
    )


def _each(weights: Weights) -> Iterator[tuple[Layer, int]]:
    return zip(weights.layers, weights.nbytes, strict=True)


def _divide(layer: Layer, shares: Shares) -> Choice | None:
    """Divide a layer by columns of its weights, or by rows if there are too few columns; None if neither is possible."""
    if len(shares) < 2:
        return None
    columns = next((name for name in COLUMNS if layer.splits(name)), None)
    if columns and layer.extent(columns) >= FEWEST_COLUMNS * len(shares):
        return Divide((columns,), shares)
    return reduce(layer, "inner", shares) or (Divide((columns,), shares) if columns else None)


def _by_room(rooms: Rooms) -> Shares:
    return tuple((device, room) for device, room in rooms.items() if room > 0)


def _by_speed(memo: Memo, weights: Weights, rooms: Rooms) -> Shares:
    """The shares in proportion to speed, but none larger than its device has room for. If there is not enough
    room in all, they are in proportion to room."""
    total = float(weights.total)
    if sum(room for room in rooms.values() if room > 0) <= total:
        return _by_room(rooms)
    full: dict[str, float] = {}
    speeds = {device: speed for device, speed in memo.shares(memo.by_speed) if rooms[device] > 0}
    while True:
        left = total - sum(full.values())
        free = sum(speed for device, speed in speeds.items() if device not in full)
        over = {
            device: rooms[device]
            for device, speed in speeds.items()
            if device not in full and left * speed / free > rooms[device]
        }
        if not over:
            return tuple((d, full[d] if d in full else left * speed / free) for d, speed in speeds.items())
        full.update(over)


def _parts(weights: Weights, shares: Shares) -> dict[str, float]:
    total = sum(share for _, share in shares)
    return {device: weights.total * share / total if total else 0.0 for device, share in shares}


def _describe(weight_bytes: Mapping[str, float]) -> str:
    return ", ".join(
        f"{figures.format_bytes(size)} on {device}" for device, size in weight_bytes.items() if size
    )


def explain_infeasible(study: Study) -> Infeasible:
    """The error for a model that fits nowhere, with the smallest limits that were found to suffice, all
    larger in the same proportion. Under these limits a plan is found again, even if speeds are measured anew
    in the meantime."""
    low, high, factor = 1.0, float("inf"), 1.0
    for _ in range(TRIES):
        needed = _needed_memory(_with_limits(study, _larger(study.memo, factor)))[0]
        if needed <= 1:
            high = factor
        else:
            low = factor
        factor = min(factor * needed, (low + high) / 2) if needed > 1 else (low + high) / 2
        if high / low < 1.01:
            break
    while high == float("inf"):
        factor *= 2
        high = factor if _needed_memory(_with_limits(study, _larger(study.memo, factor)))[0] <= 1 else high
    enough = _larger(study.memo, high)
    peaks = _needed_memory(_with_limits(study, enough))[1]
    fewer = {name: max(limit, float(peaks.get(name, 0))) for name, limit in _larger(study.memo, 1.0).items()}
    return _error(study.memo, fewer if _needed_memory(_with_limits(study, fewer))[0] <= 1 else enough)


def _larger(memo: Memo, factor: float) -> dict[str, float]:
    """The limit of each device times `factor`."""
    return {device.name: ceil(memo.limit_bytes(device.name) * factor) for device in memo.cluster.devices}


def _with_limits(study: Study, limits: Rooms) -> Study:
    """The study with other memory limits."""
    devices = (replace(device, memory_bytes=limits[device.name]) for device in study.memo.cluster.devices)
    cluster = replace(study.memo.cluster, devices=tuple(devices))
    return study.on(replace(study.memo.problem, cluster=cluster, memory_limit_bytes={}))


def _needed_memory(study: Study) -> tuple[float, Mapping[str, int]]:
    """The factor by which the limits would have to grow for the candidate that nearly fits, 1 or less if one
    fits; and the bytes that this candidate takes on each device."""
    nearest: tuple[float, Mapping[str, int]] = (float("inf"), {})
    ways = candidates(study, steady=True)
    for strategy in chain((run_alone(study, device, "auto") for device in study.memo.by_speed), ways):
        peaks = study.scorer.forecast(strategy).peak_memory_bytes
        times = max((peak / study.memo.limit_bytes(device) for device, peak in peaks.items()), default=0.0)
        if times < nearest[0]:
            nearest = times, peaks
        if times <= 1:
            break
    return nearest


def _error(memo: Memo, enough: Rooms) -> Infeasible:
    limits = {device.name: memo.limit_bytes(device.name) for device in memo.cluster.devices}
    short = {n: ceil(enough[n] - limit) for n, limit in limits.items() if enough[n] > limit}
    return refuse(memo, short, f"with {format_bytes(sum(enough.values()))} in total one was found")
