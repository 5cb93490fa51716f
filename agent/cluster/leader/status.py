"""Status: how a deployment stands, for people and for clients that wait for it. Rules, without I/O."""

from __future__ import annotations

from collections.abc import Collection

from edgepart.agent.cluster.leader.replan_policy import ClusterView
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.cluster.state.cards import find_refusals
from edgepart.agent.engines.verdicts import count_refusals
from edgepart.agent.wire.control import (
    ALIVE,
    DRAINED,
    FLAPPING,
    LEAVING,
    SUSPECT,
    VERSIONS,
    Deployment,
    DeviceWeights,
    Report,
    Version,
)
from edgepart.agent.wire.versions import understands
from edgepart.planner.figures import format_count

MOST_NAMED = 4
"""The most devices that a status names one by one."""
ABSENCES = {
    SUSPECT: "does not answer",
    LEAVING: "is about to leave",
    FLAPPING: "was lost several times lately",
    DRAINED: "is drained",
}
"""Why a device gets no program, by its status."""
MIN_COPIES = 2
"""A deployment is acknowledged when this many members (or all, if there are fewer) have its model and its
entry: the deployment then survives the loss of any one device."""


def is_safe(deployment: Deployment, world: LeaderView) -> bool:
    """Whether the model and the entry survive the loss of any one device, and of all drained devices."""
    enough = count_needed_copies(world)
    return len(world.safe_holders(deployment.model)) >= enough and count_knowing(deployment, world) >= enough


def count_needed_copies(world: LeaderView) -> int:
    return min(MIN_COPIES, len(world.staying))


def find_kept_copies_missing(deployment: Deployment, world: LeaderView) -> list[tuple[str, str, int]]:
    """The members that should store a kept version's model, as (node, model, bytes of the model). Members of an
    earlier release are not asked: they do not know kept versions, and would delete the model."""
    missing = []
    able = [m.node for m in world.cluster.members if understands(m.version, VERSIONS)]
    staying = [node for node in world.staying if node in able]
    for model, nbytes in deployment.models[1:]:
        holders = world.holders(model)
        lacking = [node for node in staying if node not in holders]
        copies = min(MIN_COPIES, len(staying)) - (len(staying) - len(lacking))
        missing += [(node, model, nbytes) for node in lacking[: max(copies, 0)] if holders]
    return missing


def count_knowing(deployment: Deployment, world: LeaderView) -> int:
    """The number of staying members that have the entry on disk."""
    reports = [world.reports[node] for node in world.staying if node in world.reports]
    return sum(_knows(report, parent_of(deployment.name), deployment.version) for report in reports)


def _knows(report: Report, name: str, version: Version) -> bool:
    return any(n == name and v >= version for n, v in report.versions)


def serves_everywhere(placement: PlanRollout, world: LeaderView) -> bool:
    """Whether no member starts requests on an earlier plan of the deployment, as far as their reports say. A
    member that has none yet, or could not load this one, starts no requests or fails them."""
    name, epoch = placement.order.deployment, placement.epoch
    return all(
        node in world.reports
        and all(
            holding.epoch >= epoch
            for holding in world.reports[node].holdings
            if holding.deployment == name and holding.active
        )
        for node in world.nodes
    )


def describe_set_aside(deployment: str, fault: str) -> str:
    """The message for a deployment whose model ends the processes that compute it."""
    return f"{deployment!r} is set aside on all devices: its model {fault}. Deploy it again to have it tried once more"


def describe_preparing(placement: PlanRollout, world: LeaderView) -> str:
    if placement.is_ready(world):
        return "trying the plan on made-up inputs, which are answered by the model alone, too"
    loading = placement.loading(world)
    ready = f"{len(placement.nodes) - len(loading)} of {len(placement.nodes)} ready"
    if len(loading) > MOST_NAMED:
        return f"preparing a plan: {ready}"
    verb = "is" if len(loading) == 1 else "are"
    return f"preparing a plan: {', '.join(loading)} {verb} still loading ({ready})"


def weights_on_their_way(placement: PlanRollout, world: LeaderView) -> tuple[DeviceWeights, ...]:
    """How far the weights have come of those of the plan's devices that have told it."""
    found = (
        (name, world.find_holding(node, placement.order.deployment, placement.epoch))
        for name, node in placement.order.names
    )
    return tuple(
        DeviceWeights(name, min(holding.here_bytes, holding.needed_bytes), holding.needed_bytes)
        for name, holding in found
        if holding is not None and holding.needed_bytes
    )


def describe_serving(placement: PlanRollout) -> str:
    devices = ", ".join(name for name, _ in placement.order.names) or "the gateways alone"
    return f"serving on {devices}"


def describe_refused_engines(placement: PlanRollout | None, model: str, world: LeaderView) -> str:
    """Which engines of the plan's devices are not used for parts of this model, and why; "" if all are."""
    found = []
    for name, node in placement.order.names if placement is not None else ():
        card = world.cluster.cards.get(node)
        refusals = [one for one in find_refusals(card.document) if one.model == model] if card else []
        for last, count in count_refusals(refusals):
            many = format_count(count, "segment")
            found.append(f"{last.engine} of {name} is not used for {many}: it {last.outcome} ({last.why})")
    return "; ".join(found)


def explain_unused_devices(deployment: Deployment, used: Collection[str], cluster: ClusterView) -> str:
    """Why devices that the user has chosen get no program, apart from the plan; "" if plans are made for all of them.
    `used` are the names of the devices for which plans are made."""
    members = {member.name: member for member in cluster.members}
    found = []
    for name in deployment.options.devices:
        if name in used:
            continue
        if (member := members.get(name)) is None:
            why = "is not here"
        elif member.status != ALIVE:
            why = ABSENCES.get(member.status, f"is {member.status}")
        elif member.node not in cluster.cards:
            why = "has not measured itself yet"
        else:
            why = "does not reach the others, or could not load its part"
        found.append(f"{name} {why}")
    if not found:
        return ""
    return f"of the devices that it may use, {', '.join(found)}; plans do without until that has changed"


def describe_storing(deployment: Deployment) -> str:
    return f"copying the model ({deployment.model_bytes / 1e6:.1f} MB) to the leader"


def explain_no_devices(deployment: Deployment, world: LeaderView) -> str:
    here = ", ".join(member.name for member in world.cluster.members)
    wanted = deployment.options.devices
    if not wanted:
        return f"no device was measured yet; here are {here}"
    if {member.name for member in world.cluster.members}.isdisjoint(wanted):
        which = (
            f"{wanted[0]}, the only device"
            if len(wanted) == 1
            else f"each of {', '.join(wanted)}, the devices"
        )
        return f"{which} that it may use, is gone; here are {here}"
    return f"none of the devices that it may use ({', '.join(wanted)}) is ready; here are {here}"
