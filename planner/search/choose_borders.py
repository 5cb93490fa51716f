"""Chooses the borders that are computed and sent before the rest (planner/lowering/borders_first.py), for a
strategy that is otherwise final. Rules only.

A cut costs one more segment, rows that are computed twice and weights that are read twice. It saves the time
that other devices would wait. Simulation decides: an **exchange** is the set of tensors that are cut
together, and each exchange is cut if that makes the request faster. How a stage runs hardly depends on
whether another stage is cut. So each stage's steps are made once with its cut and once without, and combined
for each simulation."""

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
"""Limit of simulations times devices: a simulation takes longer with more devices."""

WHY = "borders are sent before the rest is computed"


def send_borders_first(study: Study, strategy: Strategy) -> Strategy | None:
    """The strategy with the borders sent first that make a request faster; None if none do, or if the result
    does not fit in memory."""
    if strategy.replicas or study.memo.problem.objective != "latency":
        return None
    early = _EarlyExchanges(study, strategy).choose()
    if not early:
        return None
    return study.scorer.accept_if_better(strategy, replace(strategy, early=early), WHY)


class _EarlyExchanges:
    """The exchanges of one strategy's schedule that can be cut, and the latency of a request with some of them cut."""

    def __init__(self, study: Study, strategy: Strategy) -> None:
        lowering = study.scorer.sketch_lowering(strategy.parted)
        plain = replace(strategy, early=frozenset())
        schedule, seconds = lowering.schedule(plain, optimised=True, sketch=True)
        cuts = find_cuts(schedule)
        self.memo = study.memo
        self.messages = lowering.outliner.messages(schedule)
        self.whole = lowering.outliner.by_stage(schedule, seconds)
        """The steps of each stage, by device."""
        parts = lowering.outliner.by_stage(apply_cuts(schedule, cuts), seconds)
        self.cut = {device: list(_group_steps(cuts[device], steps)) for device, steps in parts.items()}
        """The steps that each stage becomes when it is cut, by device."""
        self.tensors = _exchanges(schedule, cuts)
        self.number = {name: n for n, names in enumerate(self.tensors) for name in names}
        """The number of each tensor's exchange."""
        self.of = {
            device: [
                self.number[min(tensors_sent_to_devices(schedule, device, stage))] if cut else None
                for stage, cut in zip(schedule.stages[device], cuts[device], strict=True)
            ]
            for device in schedule.stages
        }
        """The number of the exchange that each stage is cut with, by device; None for a stage that is not cut."""

    def choose(self) -> frozenset[str]:
        """The tensors of the exchanges to cut. The search starts with no cut or with all cuts, whichever is
        faster, and changes each exchange if that helps. With many devices and exchanges, consecutive
        exchanges are changed together."""
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
        """Seconds of a request with the exchanges `early` cut."""
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
    """Yields, for each stage, the steps of all its parts in order."""
    rest = iter(steps)
    for cut in cuts:
        count = len(cut.stages) if cut is not None else 1
        yield tuple(step for _ in range(count) for step in next(rest))


def _exchanges(schedule: Schedule, cuts: StageCuts) -> list[frozenset[str]]:
    """Sets of tensors that the same stages send, in the order in which they are first sent."""
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
