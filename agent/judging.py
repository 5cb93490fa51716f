"""Judging: whether a plan keeps what it promised, from what its segments and its requests took. Rules, without I/O.

A plan that is ready is judged by its segments before it replaces one that serves; one that serves, by its requests: a
plan on several devices must not be slower than one device alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgepart.agent.control import Latency
from edgepart.agent.profiles import ProfileBook
from edgepart.planner.plan import Plan, Run

REQUESTS = 5
"""So many that ran alone are enough to judge a plan by."""
SLOWER = 1.02
"""Less than so many times as slow as one device is within what measurements are wrong by."""


def measured_over_predicted(
    plan: Plan, kinds: Mapping[str, tuple[str, int]], profiles: ProfileBook
) -> float | None:
    """How many times as long as predicted the slowest device computes, in whole; None where a segment was not timed.

    `kinds`: kind and threads by device name."""
    worst = 0.0
    for name, program in plan.programs.items():
        predicted = measured = 0.0
        for step in program.steps:
            if isinstance(step, Run):
                segment = program.segments[step.segment]
                seconds = profiles.seconds(segment.digest, *kinds[name]) if name in kinds else None
                if seconds is None:
                    return None
                predicted, measured = predicted + segment.compute_s, measured + seconds
        worst = max(worst, measured / predicted if predicted else 0.0)
    return worst or None


def seconds_as_measured(plan: Plan, ratio: float, busiest_s: float) -> float:
    """The latency predicted for `plan`, were its busiest device `ratio` times as long at work."""
    return plan.predicted_latency_s + (ratio - 1) * busiest_s


def busiest_s(plan: Plan) -> float:
    """Predicted seconds of computing on the device that computes longest."""
    return max(
        (
            sum(program.segments[step.segment].compute_s for step in program.steps if isinstance(step, Run))
            for program in plan.programs.values()
        ),
        default=0.0,
    )


@dataclass
class Judge:
    """Of one deployment's plan that serves."""

    single_s: float = float("inf")
    """What the best single device would take, as far as is known."""
    latency: Latency | None = None
    """What requests take on the plan that serves."""

    def hears(self, latency: Latency) -> bool:
        """Whether it is news."""
        known, self.latency = self.latency, latency
        return known is None or known.epoch != latency.epoch or known.seconds != latency.seconds

    def seconds(self, order_epoch: object) -> float:
        """What requests take on the plan of that epoch; 0 where too few ran alone."""
        told = self.latency
        return told.seconds if told and told.epoch == order_epoch and told.requests >= REQUESTS else 0.0

    def disappoints(self, order_epoch: object, devices: int) -> bool:
        """Whether a plan on several devices was measured to be slower than one."""
        return devices > 1 and self.seconds(order_epoch) > SLOWER * self.single_s
