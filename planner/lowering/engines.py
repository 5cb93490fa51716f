"""Engines: each stage of a device that has engines is divided into segments of one engine each. Rules.

All values pass through the CPU's memory between two segments. So an engine pays for the start of each of its segments and
for the copies of the segment's inputs and outputs, and an operator that it cannot run ends a segment.

A stage runs whole on the CPU or on one engine, or it is divided. The engines of a divided stage's operators are chosen
together, by dynamic programming over the operators in their order. What operators take one by one says little of what a
provider makes of many of them together, so a division has to be predicted to be clearly quicker; and an engine that was
not tried with the model yet is given whole stages, whose trial then says how long it takes for this model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf

from edgepart.planner.devices.engine import CPU
from edgepart.planner.lowering.draft import Draft, Share, covers
from edgepart.planner.lowering.liveness import stage_outputs
from edgepart.planner.lowering.schedule import CostModel, Schedule, Seconds, Stage, StagePlace
from edgepart.planner.lowering.segment import Value, input_values, nbytes_of, weights_of
from edgepart.planner.lowering.segment_time import predict_segment_s
from edgepart.planner.model.blobs import region_bytes

WHOLE_GAIN = 1.05
"""How many times as quick as on the CPU a whole stage has to be predicted on an engine: what was measured is off by a few
percent, and an engine takes memory and time to load."""
DIVISION_GAIN = 1.2
"""How many times as quick as the quickest whole stage a divided one has to be predicted."""
TRIED_SHARE = 1.5
"""How many times as long as the quickest way a whole stage may be predicted to take on an engine that has yet to be tried:
providers that compile gained this much over what calibration knows of them (a text detector on OpenVINO 2026.4)."""
INNER = 1 << 20
"""The least `StagePlace.late` of a segment inside a divided stage: such a place is that of no message."""


def divide_by_engine(schedule: Schedule, seconds: Seconds, cost: CostModel) -> Schedule:
    """The schedule in which each stage runs on one engine. Devices without engines keep their stages."""
    having = [device for device in schedule.stages if cost.engines(device)]
    if not having:
        return schedule
    stages = dict(schedule.stages)
    for device in having:
        divider = _Divider(schedule.draft, device, seconds, cost)
        outputs = stage_outputs(schedule, device)
        pairs = zip(schedule.stages[device], outputs, strict=True)
        stages[device] = tuple(part for stage, handed in pairs for part in divider.divide(stage, handed))
    return replace(schedule, stages=stages)


def choose_engines(
    run_s: Sequence[Mapping[str, float]], switch_s: Callable[[int, str, str], float]
) -> tuple[float, list[str]]:
    """The engines of operators in a row that take the least time together, and that time. `run_s` has the seconds of each
    operator on each engine; `switch_s(n, a, b)` are those of going on with operator n on engine `b` after `a`.

    >>> choose_engines([{"": 1.0, "npu": 9.0}, {"": 8.0, "npu": 2.0}], lambda n, a, b: 3.0)
    (6.0, ['', 'npu'])
    """
    best = {engine: (taken, [engine]) for engine, taken in run_s[0].items()}
    for n, here in enumerate(run_s[1:], start=1):
        found: dict[str, tuple[float, list[str]]] = {}
        for engine, taken in here.items():
            ways = (
                (before + (switch_s(n, last, engine) if last != engine else 0.0) + taken, last)
                for last, (before, _) in best.items()
            )
            total, last = min(ways)
            found[engine] = total, [*best[last][1], engine]
        best = found
    return min(best.values())


class _Divider:
    """Divides the stages of one device."""

    def __init__(self, draft: Draft, device: str, seconds: Seconds, cost: CostModel) -> None:
        self._draft = draft
        self._device = device
        self._seconds = seconds
        self._cost = cost
        self._engines = {engine.name: engine for engine in cost.engines(device)}
        self._left_bytes = {name: engine.memory_bytes or inf for name, engine in self._engines.items()}
        """What the stages that were divided so far leave of each engine's own memory."""

    def divide(self, stage: Stage, outputs: Sequence[Value]) -> tuple[Stage, ...]:
        """The stages that take the place of `stage`, which hands on `outputs`."""
        found = self._divide(stage, outputs) if stage.shares else (stage,)
        for part in found:
            if part.engine != CPU:
                self._left_bytes[part.engine] -= self._weight_bytes(part.shares)
        return found

    def _divide(self, stage: Stage, outputs: Sequence[Value]) -> tuple[Stage, ...]:
        run_s = self._shares_s(stage.shares, outputs)
        able = [engine for engine in run_s[0] if all(engine in each for each in run_s)]
        whole = {engine: replace(stage, engine=engine) for engine in able}
        whole_s = {engine: self._segment_s(one, outputs) for engine, one in whole.items()}
        quickest = min(able, key=lambda engine: whole_s[engine] * (1.0 if engine == CPU else WHOLE_GAIN))
        parts = tuple(_parts(stage, self._choose(run_s, stage.shares)))
        parts_s = sum(self._segment_s(part, handed) for part, handed in _with_outputs(parts, outputs))
        for engine in sorted(able, key=whole_s.__getitem__):
            untried = engine != CPU and self._engines[engine].untried
            if untried and whole_s[engine] < TRIED_SHARE * min(whole_s[quickest], parts_s):
                return (whole[engine],)
        return parts if DIVISION_GAIN * parts_s < whole_s[quickest] else (whole[quickest],)

    def _segment_s(self, stage: Stage, outputs: Sequence[Value]) -> float:
        values = (*input_values(self._draft, stage.shares), *outputs)
        return predict_segment_s(self._draft, stage, self._device, values, self._seconds, self._cost)

    def _choose(
        self, run_s: Sequence[dict[str, float]], shares: Sequence[Share]
    ) -> list[tuple[str, list[Share]]]:
        """Runs of shares that follow one another on one engine."""
        crossing = list(_crossing_bytes(self._draft, shares))

        def switch_s(n: int, last: str, engine: str) -> float:
            values, nbytes = crossing[n]
            moved = sum(self._copying_s(one, values, nbytes) for one in (last, engine))
            return (
                self._cost.segment_s(self._device, engine)
                + 2 * self._cost.copy_s(self._device, nbytes)
                + moved
            )

        first = {
            engine: taken + self._cost.segment_s(self._device, engine) for engine, taken in run_s[0].items()
        }
        run_s = [first, *run_s[1:]]
        chosen = choose_engines(run_s, switch_s)[1]
        pairs = groupby(zip(chosen, shares, strict=True), key=lambda pair: pair[0])
        return [(engine, [share for _, share in run]) for engine, run in pairs]

    def _shares_s(self, shares: Sequence[Share], outputs: Sequence[Value]) -> list[dict[str, float]]:
        """The seconds of each share on each engine that can run it. Where its weights and values do not fit into what is
        left of an engine's memory beside the weights of those before it, the engine cannot."""
        inside = {name for share in shares for name, _ in share.written}
        given_out = {name for name, _ in outputs}
        found = [self._run_s(share, inside, given_out) for share in shares]
        for engine, left_bytes in self._left_bytes.items():
            if left_bytes == inf:
                continue
            for share, taken_s in zip(shares, found, strict=True):
                weight_bytes, values = self._weight_bytes([share]), (*share.needs, *share.written)
                if left_bytes < weight_bytes + sum(nbytes_of(self._draft.graph, *value) for value in values):
                    taken_s.pop(engine, None)
                if engine in taken_s:
                    left_bytes -= weight_bytes
        return found

    def _weight_bytes(self, shares: Sequence[Share]) -> int:
        constants = self._draft.graph.constants
        return sum(region_bytes(constants[name], region) for name, region in weights_of(self._draft, shares))

    def _run_s(self, share: Share, inside: set[str], given_out: set[str]) -> dict[str, float]:
        """The seconds of a share on each engine, with the copies of what comes from outside the stage and goes there."""
        graph, access = self._draft.graph, self._draft.blueprint.accesses[share.operator.name]
        ends = [(name, region) for name, region in share.needs if name not in inside]
        ends += [(name, region) for name, region in share.written if name in given_out]
        nbytes = sum(nbytes_of(graph, *value) for value in ends)
        in_place = any(name in graph.in_place for name, _ in (*share.needs, *share.written))
        found = {}
        for engine in (CPU, *(() if in_place else self._engines)):
            if engine != CPU and share.operator.name in self._engines[engine].lacks:
                continue
            taken = self._cost.compute_s(share.operator, access, share.outputs, self._device, engine)
            if engine == CPU or taken < float("inf"):
                found[engine] = taken + self._copying_s(engine, len(ends), nbytes)
        return found

    def _copying_s(self, engine: str, values: int, nbytes: float) -> float:
        return 0.0 if engine == CPU else self._engines[engine].copying_s(values, nbytes)


def _crossing_bytes(draft: Draft, shares: Sequence[Share]) -> Iterator[tuple[int, int]]:
    """For each share, the values that shares before it write and that it or later ones read: their number and bytes."""
    last = {name: n for n, share in enumerate(shares) for name, _ in share.needs}
    alive: dict[str, int] = {}
    for n, share in enumerate(shares):
        alive = {name: nbytes for name, nbytes in alive.items() if last.get(name, -1) >= n}
        yield len(alive), sum(alive.values())
        alive |= {name: nbytes_of(draft.graph, name, region) for name, region in share.written}


def _parts(stage: Stage, runs: Sequence[tuple[str, Sequence[Share]]]) -> Iterator[Stage]:
    """The stages of these runs. The first receives what `stage` receives, and the last sends what it sends."""
    for n, (engine, shares) in enumerate(runs):
        inner = StagePlace(stage.first.level, INNER * (stage.first.late + 1) + n)
        first = stage.first if n == 0 else inner
        last = stage.last if n == len(runs) - 1 else inner
        yield replace(stage, first=first, last=last, shares=tuple(shares), engine=engine)


def _with_outputs(parts: Sequence[Stage], outputs: Sequence[Value]) -> Iterator[tuple[Stage, list[Value]]]:
    """Each part with what it hands on: what the whole stage does, and what later parts read."""
    for n, part in enumerate(parts):
        later = [need for other in parts[n + 1 :] for share in other.shares for need in share.needs]
        written = [one for share in part.shares for one in share.written]
        yield (
            part,
            [
                (name, region)
                for name, region in written
                if (name, region) in outputs or any(name == other and covers(region, r) for other, r in later)
            ],
        )
