"""Judging: whether a plan keeps what it promised, from what its segments and its requests took. Rules, without I/O.

A plan that is ready is judged by its segments before it replaces one that serves; one that serves, by its requests: a
plan on several devices must not be slower than one device alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any

from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.wire.control import Latency
from edgepart.planner.plans.plan import Plan, Run

REQUESTS = 5
"""So many that ran alone are enough to judge a plan by."""
MOST_GATEWAYS = 1024
"""Whose latencies are remembered."""
SLOWER = 1.02
"""Less than so many times as slow as one device is within what measurements are wrong by."""


Kinds = Mapping[str, tuple[str, int]]
"""By device name, its pace (planner/devices/cluster.py) and threads."""


def computing_s(plan: Plan, kinds: Kinds, profiles: ProfileBook) -> dict[str, tuple[float, float | None]]:
    """By device, predicted and measured seconds of computing for one request; None where a segment was not timed."""
    found: dict[str, tuple[float, float | None]] = {}
    for name, program in plan.programs.items():
        run = [program.segments[step.segment] for step in program.steps if isinstance(step, Run)]
        known = [profiles.seconds(segment.digest, *kinds[name]) if name in kinds else None for segment in run]
        measured = [seconds for seconds in known if seconds is not None]
        whole = sum(measured) if len(measured) == len(run) else None
        found[name] = sum(segment.compute_s for segment in run), whole
    return found


def measured_over_predicted(plan: Plan, kinds: Kinds, profiles: ProfileBook) -> float | None:
    """How many times as long as predicted the slowest device computes, in whole; None where a segment was not timed."""
    worst = 0.0
    for predicted, measured in computing_s(plan, kinds, profiles).values():
        if measured is None:
            return None
        worst = max(worst, measured / predicted if predicted else 0.0)
    return worst or None


def report(plan: Plan, kinds: Kinds, profiles: ProfileBook, latencies: Sequence[float]) -> dict[str, Any]:
    """What was measured of a plan, for people. `latencies`: seconds of requests that ran alone."""
    return {
        "latency_s": median(latencies) if latencies else None,
        "requests": len(latencies),
        "devices": {
            name: {"predicted_compute_s": predicted, "measured_compute_s": measured}
            for name, (predicted, measured) in computing_s(plan, kinds, profiles).items()
        },
    }


def seconds_as_measured(plan: Plan, ratio: float, busiest_s: float, *, many: bool = False) -> float:
    """The latency predicted for `plan`, were its busiest device `ratio` times as long at work; with `many`, the seconds
    between two requests."""
    predicted_s = 1 / plan.predicted_throughput_per_s if many else plan.predicted_latency_s
    # Replicas share the requests, so that between two of them even the busiest device is not busy for so long.
    return predicted_s + (ratio - 1) * (min(busiest_s, predicted_s) if many else busiest_s)


def busiest_s(plan: Plan) -> float:
    """Predicted seconds of computing on the device that computes longest."""
    return max((predicted for predicted, _ in computing_s(plan, {}, ProfileBook()).values()), default=0.0)


@dataclass(frozen=True, slots=True)
class Alone:
    """What requests took that ran on a plan while no other one did."""

    seconds: tuple[float, ...]
    """Of the last ones."""
    count: int
    """Of all of them so far."""
    nodes: frozenset[str]
    """Which did their part, the gateway too."""


@dataclass
class PlanJudge:
    """Of one deployment's plan that serves."""

    single_s: float = float("inf")
    """What the best single device would take, as far as is known."""
    latencies: dict[str, Latency] = field(default_factory=dict)
    """What requests take on the plan that serves, by the gateway that told it last."""

    def hears(self, latency: Latency, gateway: str = "") -> bool:
        """Whether it is news."""
        known = self.latencies.pop(gateway, None)
        self.latencies[gateway] = latency
        while len(self.latencies) > MOST_GATEWAYS:
            del self.latencies[next(iter(self.latencies))]
        return known is None or known.epoch != latency.epoch or known.seconds != latency.seconds

    def seconds(self, order_epoch: object) -> float:
        """What requests take on the plan of that epoch; 0 where too few ran alone. Of several gateways the one in the
        middle counts, so that no single one that lies has a plan given up."""
        told = [
            one.seconds
            for one in self.latencies.values()
            if one.epoch == order_epoch and one.requests >= REQUESTS
        ]
        return median_low(told) if told else 0.0

    def disappoints(self, order_epoch: object, devices: int) -> bool:
        """Whether a plan on several devices was measured to be slower than one."""
        return devices > 1 and self.seconds(order_epoch) > SLOWER * self.single_s
