"""Drift: how many times as long as it was calibrated to take a device computes now, from what its segments took. Facts
and rules, without I/O: segment_times.py measures, control.Drift tells, drift_policy.py decides what to do about it.

Evidence is kept by deployment, for a model may be one that predictions are wrong by; what nobody ran yet is expected to
drift as the device's other deployments do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log2
from statistics import median

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.wire.control import MOST_DRIFT, Drift
from edgepart.planner.devices.cluster import Device
from edgepart.planner.plans.plan import Program

LEAST_S = 1e-3
"""Of computing that was predicted: of less, fixed costs and the clock are what is measured."""
STEPS = 8
"""To each octave: what moved by less than one of them (a tenth) is no news."""
MOST_DEPLOYMENTS = 64
"""Of one device that are remembered; the ones not heard of for longest are forgotten."""


def drift(program: Program, device: Device, took_s: Mapping[str, float]) -> float | None:
    """Measured over calibrated seconds of the segments that were run, all together, within bounds; None where that is too
    little to tell. `took_s`: by digest, what each takes. `device` as it is calibrated now: what it was found to be slower
    by since the plan was made is no drift."""
    run = [one for one in program.segments if one.calibrated_s > 0 and one.digest in took_s]
    calibrated_s = sum(one.calibrated_s for one in run) * device.slower_than(program.flops_per_s)
    if calibrated_s < LEAST_S:
        return None
    factor = sum(took_s[one.digest] for one in run) / calibrated_s
    return min(max(factor, 1 / MOST_DRIFT), MOST_DRIFT)


def stepped(factor: float) -> float:
    """The nearest whole step.

    >>> stepped(1.02), stepped(1.9), stepped(2.0)
    (1.0, 1.8340080864093424, 2.0)
    """
    return float(2 ** (round(STEPS * log2(factor)) / STEPS))


def is_news(factor: float, told: float) -> bool:
    """Whether it is more than a step from what was told last: one that wavers between two steps is no news."""
    return abs(log2(factor / told)) * STEPS > 1


@dataclass(frozen=True, slots=True)
class _Told:
    factor: float
    at: float


class DriftBook:
    """What devices told of their drift, this one's own too."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, _Told]] = {}

    def learn(self, node: str, told: Drift, now: float) -> None:
        known = self._told.setdefault(node, {})
        known.pop(told.deployment, None)
        known[told.deployment] = _Told(told.factor, now)
        while len(known) > MOST_DEPLOYMENTS:
            del known[next(iter(known))]

    def factor(self, node: str, deployment: str) -> float:
        """1 where nothing was told: as calibrated."""
        return self._about(node, deployment).factor

    def told_at(self, node: str, deployment: str) -> float:
        """When `factor` was told; -inf where it was not."""
        return self._about(node, deployment).at

    def _about(self, node: str, deployment: str) -> _Told:
        known = self._told.get(node, {})
        if (own := known.get(deployment)) is not None:
            return own
        others = list(known.values())  # A copy at once: segment_times.py asks in a thread.
        if not others:
            return _Told(1.0, -inf)
        return _Told(stepped(median(one.factor for one in others)), max(one.at for one in others))

    def of(self, node: str) -> tuple[Drift, ...]:
        """All that is known of a device, to be told again."""
        return tuple(Drift(name, one.factor) for name, one in self._told.get(node, {}).items())

    def forget(self, node: str) -> None:
        """It is gone, or was calibrated anew."""
        self._told.pop(node, None)

    def undeployed(self, deployment: str) -> None:
        """Nothing of that name, or of its variants, runs any more."""
        for known in self._told.values():
            for name in [name for name in known if parent_of(name) == deployment]:
                del known[name]
