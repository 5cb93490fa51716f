"""Remembered plans: of each set of devices that a deployment was served on, the plan that served last. Rules,
without I/O.

When a device is lost and comes back, the problem is that of before, and so is its solution. The plan then
only has to be loaded and tried; a search would take longer, and might find a worse plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edgepart.agent.cluster.leader.rollout_state import PlanRollout
from edgepart.agent.cluster.state.cards import are_alike
from edgepart.agent.cluster.state.events import PlanKey
from edgepart.agent.wire.control import Card, Prepare

MOST_PLANS = 8
"""The most sets of devices for which a plan is remembered; that for the set that was there longest ago is
forgotten first. A plan is about as large as the model without its weights."""


@dataclass(frozen=True)
class RememberedPlan:
    """A plan that served, and what it served on."""

    placement: PlanRollout
    key: PlanKey
    """The key that was wanted when it served last."""
    cards: tuple[Card, ...]
    """The cards of the key's devices at that time."""
    best: bool
    """Whether a thorough search found nothing better for the key."""
    latency_s: float
    """The seconds that a request takes, as predicted or, if that is more, as measured."""

    def latency_with(self, drifts: Iterable[tuple[str, float]]) -> float:
        """The most seconds that a request takes if devices now compute as many times as long as calibrated: as if all of it
        took longer by what the device has slowed down that has done so most since. `drifts` are as in PlanKey; devices that
        are not in it compute as calibrated."""
        before = dict(self.key.drifts)
        return self.latency_s * max([1.0, *(now / before.get(node, 1.0) for node, now in drifts)])

    def again(self, order: Prepare, key: PlanKey, instead_of_s: float) -> PlanRollout:
        """The plan, to be prepared again by that order for the key, in place of one that takes `instead_of_s` seconds. It
        is tried again, as a device may have changed while it was away."""
        return replace(
            self.placement,
            order=order,
            sent_at={},
            instead_of_s=instead_of_s,
            made_for=key,
            verdict="",
            waits_since=math.inf,
        )


class RememberedPlans:
    """The remembered plans of one deployment."""

    def __init__(self) -> None:
        self._plans: dict[frozenset[tuple[str, str]], RememberedPlan] = {}
        """By the node and name of each device; the set that was there last comes last."""

    def __len__(self) -> int:
        return len(self._plans)

    def note(
        self, placement: PlanRollout, key: PlanKey, cards: Mapping[str, Card], *, best: bool, latency_s: float
    ) -> None:
        """Remember that the plan serves while the key is wanted. The other arguments are as in RememberedPlan."""
        devices = _devices(key)
        self._plans.pop(devices, None)
        there = tuple(cards[node] for node, _, _ in key.devices)
        self._plans[devices] = RememberedPlan(placement, key, there, best, latency_s)
        while len(self._plans) > MOST_PLANS:
            del self._plans[next(iter(self._plans))]

    def find(self, key: PlanKey, cards: Mapping[str, Card]) -> RememberedPlan | None:
        """The plan that served on the key's devices; None if there is none, or if it may not suit them any more: the
        deployment, the devices or their links have changed, or a plan was refused since. What devices have drifted since is
        left to `latency_with`."""
        known = self._plans.get(_devices(key))
        if known is None:
            return None
        before = known.key
        same = replace(before, devices=key.devices, drifts=key.drifts, disappointed=key.disappointed) == key
        if not same or not are_alike(known.cards, [cards[node] for node, _, _ in key.devices]):
            return None
        return known

    def forget(self, key: PlanKey) -> None:
        """Forget the plan for the key's devices, until one serves on them again."""
        self._plans.pop(_devices(key), None)


def _devices(key: PlanKey) -> frozenset[tuple[str, str]]:
    return frozenset((node, name) for node, name, _ in key.devices)
