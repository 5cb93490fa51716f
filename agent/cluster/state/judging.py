"""Judging: whether a plan keeps its promises, by the times of its segments and of its requests. Rules,
without I/O.

A plan that is ready is judged by its segments before it replaces a plan that serves. A plan that serves is
judged by its requests: on several devices it must not be slower than on one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any

from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.wire.control import Latency
from edgepart.planner.plans.plan import Plan

MIN_REQUESTS = 5
"""The number of requests that must have run alone before a plan is judged by them: their median then stands
for the plan."""
MAX_GATEWAYS = 1024
"""The most gateways whose latencies are remembered."""
SLOWER_FACTOR = 1.02
"""A plan counts as slower than one device only above this factor, because measurements are off by up to 2
%."""


Kinds = Mapping[str, tuple[str, int]]
"""The pace (planner/devices/cluster.py) and the number of threads of each device, by device name."""


def sum_computing_s(plan: Plan, kinds: Kinds, profiles: ProfileBook) -> dict[str, tuple[float, float | None]]:
    """Predicted and measured seconds of computing for one request, by device; measured is None if a segment
    was not timed."""
    found: dict[str, tuple[float, float | None]] = {}
    for name, program in plan.programs.items():
        run = program.runs
        known = [
            profiles.seconds(segment.timed_as, *kinds[name]) if name in kinds else None for segment in run
        ]
        measured = [seconds for seconds in known if seconds is not None]
        whole = sum(measured) if len(measured) == len(run) else None
        found[name] = sum(segment.compute_s for segment in run), whole
    return found


def compute_slowdown(plan: Plan, kinds: Kinds, profiles: ProfileBook) -> float | None:
    """How many times as long as predicted the slowest device computes, all its segments together; None if a
    segment was not timed."""
    worst = 0.0
    for predicted, measured in sum_computing_s(plan, kinds, profiles).values():
        if measured is None:
            return None
        worst = max(worst, measured / predicted if predicted else 0.0)
    return worst or None


def build_measurements_report(
    plan: Plan, kinds: Kinds, profiles: ProfileBook, latencies: Sequence[float]
) -> dict[str, Any]:
    """The measurements of a plan, for people. `latencies`: the seconds of requests that ran alone."""
    return {
        "latency_s": median(latencies) if latencies else None,
        "requests": len(latencies),
        "devices": {
            name: {"predicted_compute_s": predicted, "measured_compute_s": measured}
            for name, (predicted, measured) in sum_computing_s(plan, kinds, profiles).items()
        },
    }


def correct_prediction_s(plan: Plan, ratio: float, busiest_s: float, *, many: bool = False) -> float:
    """The latency predicted for `plan` if its busiest device computes `ratio` times as long; with `many`, the
    seconds between two requests."""
    predicted_s = 1 / plan.predicted_throughput_per_s if many else plan.predicted_latency_s
    # Replicas share the requests, so between two requests no device is busy for longer than `predicted_s`.
    return predicted_s + (ratio - 1) * (min(busiest_s, predicted_s) if many else busiest_s)


def predict_busiest_s(plan: Plan) -> float:
    """Predicted seconds of computing on the device that computes for longest."""
    return max((predicted for predicted, _ in sum_computing_s(plan, {}, ProfileBook()).values()), default=0.0)


@dataclass(frozen=True, slots=True)
class LoneRequests:
    """The times of requests that ran on a plan while no other request did."""

    seconds: tuple[float, ...]
    """The seconds that each of the last such requests took."""
    count: int
    """The number of all such requests so far."""
    nodes: frozenset[str]
    """The nodes that took part, the gateway included."""


@dataclass
class PlanJudge:
    """Judges the serving plan of one deployment."""

    single_s: float = float("inf")
    """The predicted latency on the best single device; inf if that is not known."""
    latencies: dict[str, Latency] = field(default_factory=dict)
    """The last latency that each gateway told; the gateway that told last comes last."""

    def hears(self, latency: Latency, gateway: str = "") -> bool:
        """Note the latency that a gateway told; return whether that is news."""
        known = self.latencies.pop(gateway, None)
        self.latencies[gateway] = latency
        while len(self.latencies) > MAX_GATEWAYS:
            del self.latencies[next(iter(self.latencies))]
        return known is None or known.epoch != latency.epoch or known.seconds != latency.seconds

    def seconds(self, order_epoch: object) -> float:
        """The seconds that requests take on the plan of that epoch; 0 if too few ran alone. If several
        gateways told theirs, the median counts, so that a single gateway that lies cannot have a plan given
        up."""
        told = [
            one.seconds
            for one in self.latencies.values()
            if one.epoch == order_epoch and one.requests >= MIN_REQUESTS
        ]
        return median_low(told) if told else 0.0

    def disappoints(self, order_epoch: object, devices: int) -> bool:
        """Whether the plan runs on several devices and was measured to be slower than one device."""
        return devices > 1 and self.seconds(order_epoch) > SLOWER_FACTOR * self.single_s
