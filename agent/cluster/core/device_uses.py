"""Uses of a device: what still needs a device that is drained or to be removed. Facts and rules, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgepart.agent.cluster.leader import status
from edgepart.agent.cluster.leader.rollout_state import LeaderView
from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.wire.control import Deployment, Prepare


@dataclass(frozen=True, slots=True)
class ServedPlans:
    """The deployments and plans in which the leader looks for uses of a device, besides members' reports."""

    deployments: Sequence[Deployment]
    orders: Sequence[Prepare]
    """The orders of all plans that serve or are on their way."""
    why_not: Callable[[str], str]
    """Returns why a deployment has no plan for what is wanted now; "" if it has one, or if that is not known
    yet."""


def describe_uses(node: str, world: LeaderView, served: ServedPlans) -> Iterator[str]:
    """Yield a sentence for people about each thing to be done before nothing needs the device."""
    using = sorted({parent_of(order.deployment) for order in served.orders if node in _nodes(order)})
    for name in using:
        why = served.why_not(name)
        yield f"{name} cannot do without it: {why}" if why else f"{name} still runs on it"
    if not using:
        yield from _behind(world, served)
    for entry in served.deployments:
        enough = status.count_needed_copies(world)
        if (copies := len(world.safe_holders(entry.model))) < enough and world.holders(entry.model):
            yield f"the model of {entry.name} is being copied ({copies} of {enough})"
        elif status.count_knowing(entry, world) < enough:
            yield f"{entry.name} is not on enough disks yet"
        elif status.find_kept_copies_missing(entry, world):
            yield f"an earlier version of the model of {entry.name} is being copied"


def _behind(world: LeaderView, served: ServedPlans) -> Iterator[str]:
    """Yield a sentence about each gateway that still starts requests on a plan before the serving one."""
    current = {(order.deployment, order.epoch) for order in served.orders}
    names = {name for name, _ in current}
    for node, report in world.reports.items():
        old = [h for h in report.holdings if h.active and h.deployment in names]
        if any((h.deployment, h.epoch) not in current for h in old):
            yield f"{node} is still switching to the new plan"


def _nodes(order: Prepare) -> set[str]:
    return {node for _, node in order.names}
