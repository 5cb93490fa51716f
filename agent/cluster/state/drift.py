"""Drift: how many times as long as calibrated a device computes now, computed from the times of its segments.
Facts and rules, without I/O: segment_times.py measures, control.Drift tells members, drift_policy.py decides
what follows.

Drift is kept by deployment, because a prediction may be wrong for one model. For a deployment that a device
has not run yet, the drift of the device's other deployments is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, log2
from statistics import median

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.wire.control import MOST_DRIFT, Drift
from edgepart.planner.devices.cluster import Device
from edgepart.planner.plans.plan import Program, Segment

MIN_CALIBRATED_S = 1e-3
"""The least calibrated computing time, in seconds, from which drift is computed: below it, fixed costs and
the clock's resolution would be measured."""
STEPS_PER_OCTAVE = 8
"""Drifts are rounded to this many steps for each factor of two. A move by less than one step (9 %) is no
news."""
MAX_DEPLOYMENTS = 64
"""The most deployments of one device whose drift is remembered; those not heard of for longest are
forgotten."""


def compute_drift(
    program: Program,
    device: Device,
    took_s: Mapping[str, float],
    engine_drift: Callable[[Segment], float | None] = lambda segment: 1.0,
) -> float | None:
    """Measured divided by calibrated seconds, over all segments that were run, limited to MOST_DRIFT and its
    inverse; None if the calibrated seconds are too few. `took_s`: the seconds that each segment takes, by
    `Segment.timed_as`. `device`: the device as calibrated now, because a slowdown that was found since the plan was made
    is no drift. `engine_drift`: the drift of the segment's engine for its model, which is no drift of the device; where it
    is not known (None), the segment does not count."""
    timed = [one for one in program.segments if one.calibrated_s > 0 and one.timed_as in took_s]
    expected = [(one, factor) for one in timed if (factor := engine_drift(one)) is not None]
    calibrated_s = sum(one.calibrated_s * factor for one, factor in expected)
    calibrated_s *= device.slower_than(program.flops_per_s)
    if calibrated_s < MIN_CALIBRATED_S:
        return None
    factor = sum(took_s[one.timed_as] for one, _ in expected) / calibrated_s
    return min(max(factor, 1 / MOST_DRIFT), MOST_DRIFT)


def round_to_step(factor: float) -> float:
    """The nearest drift that is a whole number of steps.

    >>> round_to_step(1.02), round_to_step(1.9), round_to_step(2.0)
    (1.0, 1.8340080864093424, 2.0)
    """
    return float(2 ** (round(STEPS_PER_OCTAVE * log2(factor)) / STEPS_PER_OCTAVE))


def is_news(factor: float, told: float) -> bool:
    """Whether `factor` is more than a step away from `told`, the drift that was told last: a drift that
    wavers between two steps is no news."""
    return abs(log2(factor / told)) * STEPS_PER_OCTAVE > 1


@dataclass(frozen=True, slots=True)
class _Told:
    factor: float
    at: float


class DriftBook:
    """The drifts that devices told, this device included."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, _Told]] = {}

    def learn(self, node: str, told: Drift, now: float) -> None:
        known = self._told.setdefault(node, {})
        known.pop(told.deployment, None)
        known[told.deployment] = _Told(told.factor, now)
        while len(known) > MAX_DEPLOYMENTS:
            del known[next(iter(known))]

    def factor(self, node: str, deployment: str) -> float:
        """The drift to plan with; 1 (as calibrated) if nothing was told."""
        return self._about(node, deployment).factor

    def told_at(self, node: str, deployment: str) -> float:
        """The time when the drift that `factor` returns was told; -inf if none was."""
        return self._about(node, deployment).at

    def _about(self, node: str, deployment: str) -> _Told:
        known = self._told.get(node, {})
        if (own := known.get(deployment)) is not None:
            return own
        others = list(known.values())  # A copy in one step: segment_times.py reads in a thread.
        if not others:
            return _Told(1.0, -inf)
        return _Told(round_to_step(median(one.factor for one in others)), max(one.at for one in others))

    def of(self, node: str) -> tuple[Drift, ...]:
        """All known drifts of a device, to be told again."""
        return tuple(Drift(name, one.factor) for name, one in self._told.get(node, {}).items())

    def forget(self, node: str) -> None:
        """Forget a device's drifts: the device is gone, or was calibrated anew."""
        self._told.pop(node, None)

    def undeployed(self, deployment: str) -> None:
        """Forget the drifts of a deployment and its variants, none of which runs any more."""
        for known in self._told.values():
            for name in [name for name in known if parent_of(name) == deployment]:
                del known[name]
