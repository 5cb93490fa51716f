"""Engines: each stage of a device that has engines is divided into segments of one engine each. Rules.

All values pass through the CPU's memory between two segments. So an engine pays for the start of each of its segments and
for the copies of the segment's inputs and outputs, and an operator that it cannot run ends a segment. The engines of a
stage's operators are chosen together, by dynamic programming over the operators in their order; the result is kept only
if it is predicted to be quicker than the CPU alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from edgepart.planner.devices.engine import CPU
from edgepart.planner.lowering.draft import Draft, Share, covers
from edgepart.planner.lowering.liveness import stage_outputs
from edgepart.planner.lowering.schedule import CostModel, Schedule, Seconds, Stage, StagePlace
from edgepart.planner.lowering.segment import Value, input_values, nbytes_of
from edgepart.planner.lowering.segment_time import predict_segment_s

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

    def divide(self, stage: Stage, outputs: Sequence[Value]) -> tuple[Stage, ...]:
        """The stages that take the place of `stage`, which hands on `outputs`."""
        if not stage.shares:
            return (stage,)
        runs = self._choose(stage.shares, outputs)
        if all(engine == CPU for engine, _ in runs):
            return (stage,)
        parts = tuple(_parts(stage, runs))
        divided_s = sum(self._segment_s(part, handed) for part, handed in _with_outputs(parts, outputs))
        return parts if divided_s < self._segment_s(stage, outputs) else (stage,)

    def _segment_s(self, stage: Stage, outputs: Sequence[Value]) -> float:
        values = (*input_values(self._draft, stage.shares), *outputs)
        return predict_segment_s(self._draft, stage, self._device, values, self._seconds, self._cost)

    def _choose(self, shares: Sequence[Share], outputs: Sequence[Value]) -> list[tuple[str, list[Share]]]:
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

        inside = {name for share in shares for name, _ in share.written}
        given_out = {name for name, _ in outputs}
        run_s = [self._run_s(share, inside, given_out) for share in shares]
        for engine in run_s[0]:
            run_s[0][engine] += self._cost.segment_s(self._device, engine)
        chosen = choose_engines(run_s, switch_s)[1]
        pairs = groupby(zip(chosen, shares, strict=True), key=lambda pair: pair[0])
        return [(engine, [share for _, share in run]) for engine, run in pairs]

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
