"""Orders: what members are told about the plans of one deployment. Members are compared with what they should have, and get
the orders that are missing. Rules, without I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from edgepart.agent.cluster.leader.deployment_plans import DeploymentPlans
from edgepart.agent.cluster.leader.rollout_state import RESEND_S, LeaderView, PlanRollout
from edgepart.agent.cluster.state.events import RIGHT, Effect, PlanComputed, SendMessage
from edgepart.agent.wire.control import FAILED, READY, Activate, Holding, Prepare, Retire
from edgepart.agent.wire.inference import Epoch


def make_placement(
    found: PlanComputed, plans: DeploymentPlans, world: LeaderView, epoch: Epoch, *, weighed: bool = False
) -> PlanRollout:
    """A plan that was computed, with the order by which members prepare it. `weighed`: whether its segments are timed
    before it serves."""
    deployment = plans.deployment
    nodes = {name: node for node, name, _ in found.key.devices}
    order = Prepare(
        term=world.term,
        deployment=deployment.name,
        version=deployment.version,
        epoch=epoch,
        plan=found.plan,
        names=tuple((name, nodes[name]) for name in sorted(found.names)),
        model=deployment.model,
        sources=tuple(world.holders(deployment.model)),
        latency_s=found.latency_s,
        shapes=deployment.options.shapes,
        # Who waits for a quick plan does not wait for its times, too.
        weighed=weighed and not found.quick,
        memory_bytes=found.memory_bytes,
        number=deployment.number,
    )
    return PlanRollout(
        order,
        instead_of_s=found.current_latency_s,
        made_for=found.key,
        hasty=found.quick and weighed,
        chosen=found.chosen,
        note="; ".join(filter(None, (*(why for _, why in plans.refused), found.note))),
        tolerance=found.tolerance,
        step_bytes=found.step_bytes,
        quick=found.quick,
        structure=found.structure,
        verdict=RIGHT if found.is_model_itself else "",
    )


def give_orders(plans: DeploymentPlans, world: LeaderView, now: float) -> Iterator[Effect]:
    """Have members that lack a plan prepare it and, once it is active, have members that are ready switch to
    it."""
    for placement in plans.placements():
        yield from _give_orders(placement, plans, world, now)


def _give_orders(
    placement: PlanRollout, plans: DeploymentPlans, world: LeaderView, now: float
) -> Iterator[Effect]:
    name, epoch = plans.deployment.name, placement.epoch
    holders: tuple[str, ...] | None = None
    for node in world.nodes:
        if node not in world.reports or _would_go_back(node, placement, plans, world):
            continue
        holding = world.find_holding(node, name, epoch)
        order: Prepare | Activate
        if holding is None:
            if holders is None:
                holders = tuple(world.holders(plans.deployment.model))
            sources = holders or placement.order.sources
            spare = placement is not plans.active and placement is not plans.next
            order = replace(placement.order, term=world.term, sources=sources, spare=spare)
        elif placement is plans.active and holding.state == READY and not holding.active:
            order = Activate(world.term, name, epoch)
        else:
            continue
        what = (node, type(order).__name__)
        if now >= placement.sent_at.get(what, -math.inf) + RESEND_S:
            placement.sent_at[what] = now
            yield SendMessage(node, order)
    nodes = set(world.nodes)
    placement.sent_at = {what: at for what, at in placement.sent_at.items() if what[0] in nodes}


def _would_go_back(node: str, placement: PlanRollout, plans: DeploymentPlans, world: LeaderView) -> bool:
    """Whether a member should keep the plan of another leader, from across a split, for now: this plan is of an earlier
    version of the deployment, and that one may be of the version that is wanted."""
    if placement.order.version == plans.deployment.version:
        return False
    served = (h for h in world.reports[node].holdings if h.active and h.deployment == plans.deployment.name)
    return any(holding.epoch.term != placement.epoch.term for holding in served)


def retire(plans: DeploymentPlans, world: LeaderView) -> Iterator[Effect]:
    """Retire plans that nobody will use: they were prepared for a leader that is gone, or abandoned while
    a device was away."""
    kept = {placement.epoch: placement for placement in plans.placements()}
    for node, report in world.reports.items():
        for holding in report.holdings:
            if holding.deployment == plans.deployment.name and not holding.active:
                placement = kept.get(holding.epoch)
                failed = holding.state == FAILED and (placement is None or node not in placement.nodes)
                if failed or (placement is None and _is_droppable(holding, plans.active)):
                    yield SendMessage(node, Retire(world.term, holding.deployment, holding.epoch))


def _is_droppable(holding: Holding, active: PlanRollout | None) -> bool:
    """Whether a plan that the leader does not keep can be dropped. Older READY plans may still finish
    requests, and their member drops them by itself."""
    return active is not None and (holding.epoch > active.epoch or holding.state != READY)


def resend_at(plans: DeploymentPlans, now: float) -> float:
    """The next time when an order may have to be given again; inf if none may."""
    times = (at + RESEND_S for placement in plans.placements() for at in placement.sent_at.values())
    return min((at for at in times if at > now), default=math.inf)
