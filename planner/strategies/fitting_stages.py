"""Fitting stages: the model's layers in consecutive stages, each whole on a device of its own, that fit into memory by the
scorer's count. Rules only.

Dynamic programming over all places to cut and, for a few devices, all their orders (planner/placing/chain_partition.py)
finds the best stages. It takes their memory from planner/search/stage_memory.py. If a forecast shows that stages take
more, their true peaks are learned and the stages are found again. Each round learns a stage that was not known, so the
rounds end; `ROUNDS` bounds them.

`pipeline` is made of such stages. They are the last resort of the other strategies that place whole layers, and what
`auto` tries first if memory is short (out_of_memory.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from edgepart.planner.figures import format_bytes
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Whole
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.placing.chain_partition import Loads, Stages, balance
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.recipe import LayerStretch, stretches
from edgepart.planner.search.stage_memory import StageMemory
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.deepthings import spread_cuts

CUTS = 63
"""The most places to cut that are tried for the quickest stages, evenly spread over the model's work."""

PLACES = 160
"""The most places to cut that are tried for the emptiest stages; layers between two places stay together."""

ROUNDS = 8
"""The most times that stages are found again with what forecasts have shown."""


def quickest_stages(
    study: Study, name: str, devices: Sequence[str] = (), *, busiest: bool = True, because: str = ""
) -> Iterator[Strategy]:
    """Yield strategies with stages on two or more of `devices`, or of all devices; fewer devices first. The busiest
    device is the least busy, or without `busiest` one request takes the least time. Stages that do not fit after all
    are yielded, too; others follow them."""
    parts = stretches(study.memo, spread_cuts(study.memo, CUTS))
    devices = devices or study.memo.by_speed
    if len(parts) < 2 or len(devices) < 2:
        return
    search = _StageSearch(study, name, [part.layers for part in parts], devices)
    took = [(_busy if busiest else _passing)(study.memo, device, parts) for device in devices]
    whole = np.maximum if busiest else np.add
    total = sum(part.seconds for part in parts) or 1.0

    def find() -> Iterator[Stages]:
        loads = [np.where(search.fullness(n) <= 1, load, np.inf) for n, load in enumerate(took)]
        return (found for found in balance(loads, whole) if len(found.stages) > 1)

    def describe(found: Stages) -> str:
        each = (
            f"{sum(part.seconds for part in parts[begin:end]) / total:.0%} on {devices[number]}"
            for number, begin, end in found.stages
        )
        return f"{because}one stage after another, each on one device: {', then '.join(each)}"

    yield from search.run(find, describe)


def emptiest_stages(
    study: Study, name: str, devices: Sequence[str] = (), *, because: str = ""
) -> Iterator[Strategy]:
    """Yield stages on the fewest of `devices`, or of all devices, that have room, or else those whose fullest device is
    the least full, until they fit or nothing more is learned. Nothing depends on how fast devices are, except which
    come first if there are many."""
    layers = sorted(study.memo.layers, key=lambda layer: study.memo.last_position[layer.number])
    step = max(1, -(-len(layers) // PLACES))
    parts = [layers[at : at + step] for at in range(0, len(layers), step)]
    devices = devices or study.memo.by_speed
    if not parts:
        return
    search = _StageSearch(study, name, parts, devices)

    def find() -> Iterator[Stages]:
        found = list(balance([search.fullness(number) for number in range(len(devices))]))
        fitting = (one for one in found if one.busiest <= 1)
        yield next(fitting, None) or min(found, key=lambda one: one.busiest)

    def describe(found: Stages) -> str:
        each = (
            f"{format_bytes(float(search.memory.nbytes(n)[begin, end]))} on {devices[n]}"
            for n, begin, end in found.stages
        )
        return f"{because}layers are placed where they have room: {', then '.join(each)}"

    yield from search.run(find, describe)


def fit_in_stages(study: Study, name: str, because: str = "") -> Iterator[Strategy]:
    """Yield the quickest stages for the problem's objective, and the emptiest ones if none of those fits. `because` says
    why there are stages instead of what the strategy is for."""
    busiest = study.memo.problem.objective == "throughput"
    fitted = False
    for strategy in quickest_stages(study, name, busiest=busiest, because=because):
        yield strategy
        fitted = fitted or not study.scorer.short_bytes(strategy)
    if not fitted:
        yield from emptiest_stages(study, name, because=because)


class _StageSearch:
    """Finds stages of the parts on the devices, and learns what they take."""

    def __init__(
        self, study: Study, name: str, parts: Sequence[Sequence[Layer]], devices: Sequence[str]
    ) -> None:
        self.study, self.name, self.parts, self.devices = study, name, parts, devices
        self.memory = StageMemory(study.memo, parts, devices)

    def fullness(self, number: int) -> Loads:
        """The part of its memory that each stage takes of the device of this index."""
        limit = self.study.memo.limit_bytes(self.devices[number])
        return self.memory.nbytes(number) / max(limit, 1.0)

    def run(
        self, find: Callable[[], Iterable[Stages]], describe: Callable[[Stages], str]
    ) -> Iterator[Strategy]:
        """Yield what `find` finds, again and again until all of it fits or it finds nothing new."""
        seen: set[tuple[tuple[int, int, int], ...]] = set()
        for _ in range(ROUNDS):
            found = [one for one in find() if one.stages not in seen]
            news = False
            for one in found:
                seen.add(one.stages)
                strategy = self.study.candidates.make(self.name, self._choices(one), describe(one))
                yield strategy
                if self.study.scorer.short_bytes(strategy):
                    news = self._learn(one, strategy) or news
            if not news:
                return

    def _choices(self, found: Stages) -> dict[int, Choice]:
        return {
            layer.number: Whole((self.devices[number],))
            for number, begin, end in found.stages
            for part in self.parts[begin:end]
            for layer in part
        }

    def _learn(self, found: Stages, strategy: Strategy) -> bool:
        peaks = self.study.scorer.forecast(strategy).peak_memory_bytes
        news = False
        for number, begin, end in found.stages:
            peak = float(peaks.get(self.devices[number], 0))
            news = self.memory.learn(number, begin, end, peak) or news
        return news


def _busy(memo: Memo, device: str, parts: Sequence[LayerStretch]) -> Loads:
    """[from, to]: seconds that the device is busy with those stretches."""
    computing, (received, sent) = _computing(memo, device, parts), _moving(memo, device, parts)
    result: Loads = np.maximum(computing, np.maximum(received[:, None], sent[None, :]))
    return result


def _passing(memo: Memo, device: str, parts: Sequence[LayerStretch]) -> Loads:
    """[from, to]: seconds that a request takes to reach the device and pass through those stretches; for the last one
    also to leave it."""
    received, sent = _moving(memo, device, parts)
    result: Loads = _computing(memo, device, parts) + received[:, None]
    result[:, -1] += sent[-1]
    return result


def _computing(memo: Memo, device: str, parts: Sequence[LayerStretch]) -> Loads:
    each = (
        sum(memo.seconds_on(device)[op.name] for layer in part.layers for op in layer.operators)
        for part in parts
    )
    seconds = np.cumsum([0.0, *each])
    result: Loads = seconds[None, :] - seconds[:, None] + memo.cost.segment_s(device)
    return result


def _moving(memo: Memo, device: str, parts: Sequence[LayerStretch]) -> tuple[Loads, Loads]:
    """The seconds that the device's network card takes to receive, and to send, what crosses each place."""
    crossing = [memo.graph.request_inputs, *(sorted(part.crossing) for part in parts)]
    moved = np.array([_nbytes(memo, names) for names in crossing], float)
    if device == memo.problem.gateway:
        moved[0] = moved[-1] = 0.0
    cluster = memo.cluster
    return moved / cluster.receiving_bytes_per_s[device], moved / cluster.sending_bytes_per_s[device]


def _nbytes(memo: Memo, names: Sequence[str]) -> float:
    """The bytes of the tensors; a shape that is known only at run time counts 0."""
    known = [memo.graph.tensors[name] for name in names if name in memo.graph.tensors]
    ends = {*memo.graph.request_inputs, *memo.graph.answer_outputs}
    return sum(
        tensor.region.size * (tensor.item_bytes if tensor.name in ends else memo.travel_bytes(tensor.name))
        for tensor in known
        if tensor.shape is not None
    )
