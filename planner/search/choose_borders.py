"""Chooses which borders are computed and sent before the rest (planner/lowering/borders_first.py), for a strategy that is
otherwise final. Rules only.

A cut costs one more segment, rows that are computed twice, and weights that are read twice; it gains what others would
have waited. So it is a choice, and simulated: an **exchange** is all that is cut together, and each is cut where that
makes the request faster. How a stage runs hardly depends on whether another one is cut: its steps are made once with
the cut and once without, and put together for each simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import ceil

from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.lowering.borders_first import (
    StageCut,
    StageCuts,
    apply_cuts,
    find_cuts,
    tensors_sent_to_devices,
)
from edgepart.planner.lowering.outline import Steps
from edgepart.planner.lowering.schedule import Schedule
from edgepart.planner.plans.timeline import TimedSchedule as Timed
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import run_schedule

TRIALS = 128
"""Simulations, times devices, as one takes longer with more of them."""

WHY = "borders are sent before the rest is computed"


def send_borders_first(study: Study, strategy: Strategy) -> Strategy | None:
    """The strategy with those borders sent first that make a request faster; None where that gains nothing, or does not
    fit."""
    if strategy.replicas or study.memo.problem.objective != "latency":
        return None
    early = _EarlyExchanges(study, strategy).choose()
    if not early:
        return None
    return study.scorer.accept_if_better(strategy, replace(strategy, early=early), WHY)


class _EarlyExchanges:
    """What can be cut of one strategy's schedule, and how long a request takes with it."""

    def __init__(self, study: Study, strategy: Strategy) -> None:
        lowering = study.scorer.sketch_lowering(strategy.parted)
        plain = replace(strategy, early=frozenset())
        schedule, seconds = lowering.schedule(plain, optimised=True, sketch=True)
        cuts = find_cuts(schedule)
        self.memo = study.memo
        self.messages = lowering.outliner.messages(schedule)
        self.whole = lowering.outliner.by_stage(schedule, seconds)
        """By device, the steps of each stage."""
        parts = lowering.outliner.by_stage(apply_cuts(schedule, cuts), seconds)
        self.cut = {device: list(_group_steps(cuts[device], steps)) for device, steps in parts.items()}
        """By device, the steps that each stage becomes when it is cut."""
        self.tensors = _exchanges(schedule, cuts)
        self.number = {name: n for n, names in enumerate(self.tensors) for name in names}
        """By tensor, its exchange."""
        self.of = {
            device: [
                self.number[min(tensors_sent_to_devices(schedule, device, stage))] if cut else None
                for stage, cut in zip(schedule.stages[device], cuts[device], strict=True)
            ]
            for device in schedule.stages
        }
        """By device and stage, the exchange that it is cut with."""

    def choose(self) -> frozenset[str]:
        """The tensors whose exchanges are cut. Starts from none or all, whichever is faster, and changes each where
        that helps. With many devices and exchanges, some that follow one another are changed together."""
        count = len(self.tensors)
        if not count:
            return frozenset()
        everything, none = frozenset(range(count)), frozenset[int]()
        best, least = none, self.latency_s(none)
        if (latency_s := self.latency_s(everything)) < least:
            best, least = everything, latency_s
        together = ceil(count * len(self.of) / TRIALS)
        for start in range(0, count, together):
            other = best ^ frozenset(range(start, min(start + together, count)))
            latency_s = self.latency_s(other)
            if latency_s < least or (latency_s == least and len(other) < len(best)):
                best, least = other, latency_s
        return frozenset(name for n in best for name in self.tensors[n])

    def latency_s(self, early: Collection[int]) -> float:
        """Seconds of a request with these exchanges cut."""
        steps = {
            device: [
                step
                for n, of in enumerate(exchanges)
                for step in (self.cut if of in early else self.whole)[device][n]
            ]
            for device, exchanges in self.of.items()
        }
        timed = Timed(steps, self.messages)
        return run_schedule(timed, self.memo.cluster, self.memo.problem.gateway).latency_s


def _group_steps(cuts: Sequence[StageCut | None], steps: Sequence[Steps]) -> Iterator[Steps]:
    """For each stage, the steps of its parts one after another."""
    rest = iter(steps)
    for cut in cuts:
        count = len(cut.stages) if cut is not None else 1
        yield tuple(step for _ in range(count) for step in next(rest))


def _exchanges(schedule: Schedule, cuts: StageCuts) -> list[frozenset[str]]:
    """Tensors that are sent by the same stages, in the order in which they are first sent."""
    found: list[frozenset[str]] = []
    for device, stages in schedule.stages.items():
        for stage, cut in zip(stages, cuts[device], strict=True):
            names = tensors_sent_to_devices(schedule, device, stage) if cut else frozenset[str]()
            if names:
                joined = [other for other in found if other & names]
                found = [other for other in found if not other & names]
                found.append(names.union(*joined))
    order = {name: n for n, name in enumerate(schedule.draft.flows)}
    return sorted(found, key=lambda names: min(map(order.__getitem__, names)))
