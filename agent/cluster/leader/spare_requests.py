"""Requests for spares: which plans for the loss of a device are computed and prepared while a plan serves, and which ones
give way when memory is short. Rules, without I/O.

contingency.py has what is prepared, and says what contingency plans and refuges are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from edgepart.agent.cluster.leader import memory_budget
from edgepart.agent.cluster.leader.deployment_plans import DeploymentPlans
from edgepart.agent.cluster.leader.orders import make_placement
from edgepart.agent.cluster.leader.plan_keys import make_key_alone, make_key_without
from edgepart.agent.cluster.leader.replan_policy import make_compute_plan
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.cluster.state.events import ComputePlan, PlanKey
from edgepart.agent.wire.inference import NO_EPOCH, Epoch


def find_refuges(
    plans: DeploymentPlans, current: PlanRollout, world: LeaderView, new_epoch: Iterator[Epoch], now: float
) -> Iterator[ComputePlan]:
    """Plan a refuge for the first loss that no plan covers yet, and have it prepared. Where the user limits the number
    of plans for losses, there are only those that are made for one."""
    if plans.most_spares < math.inf:
        return
    planning, spares = plans.planning, plans.spares
    for node in _in_order(current, world):
        key = make_key_alone(node, plans, world, now)
        if spares.shelters(node) or len(key.devices) < 2 or planning.has_failed(key, now):
            continue  # With one device left, the plan for the loss is on one device, too.
        if (found := planning.found(key)) is not None:
            spares.add_refuge(node, make_placement(found, plans, world, next(new_epoch)))
        elif planning.ask(key, now, b"", urgent=False, held=False):
            yield _order_spare(key, plans, world)
        return


def find_contingency_plans(
    plans: DeploymentPlans, current: PlanRollout, world: LeaderView, new_epoch: Iterator[Epoch], now: float
) -> Iterator[ComputePlan]:
    """Plan for the loss of one device, and have that plan prepared."""
    planning, spares = plans.planning, plans.spares
    variant = is_variant(plans.deployment.name)
    for node in _in_order(current, world):
        borrowed = spares.borrow(node)
        if node in spares and borrowed is None:
            continue
        if len(spares) >= plans.most_spares and borrowed is None:
            return
        key = make_key_without(node, plans, world, now)
        found = planning.found(key)
        if found is not None and not variant:
            is_better = borrowed is None or planning.is_gain(found.latency_s, borrowed.order.latency_s)
            # A borrowed plan was made beside another one than serves now, and does not leave mirrored states in place.
            if not is_better and key.heir_of == NO_EPOCH:
                spares.suffices(node)
            elif not spares.has_pending(world):
                placement = make_placement(found, plans, world, next(new_epoch))
                if plans.deployment.options.text:
                    # Its trial makes the first step of its sessions, a slow one, so that no text waits for it.
                    placement.verdict = ""
                spares.add(node, placement)
        elif planning.ask(key, now, b"", urgent=False, held=variant):
            yield _order_spare(key, plans, world)
            return
    if spares.are_complete(current, world):
        spares.drop_refuges()


def make_room(plans: DeploymentPlans, world: LeaderView) -> None:
    """Drop contingency plans while devices have no room for all plans."""
    name = plans.deployment.name
    others = [*world.orders_besides(name), *(o for o in world.spares if o.deployment != name)]
    while any(plans.spares) and not memory_budget.plans_fit(
        [*others, *(p.order for p in plans.placements())], world.cluster.cards
    ):
        plans.spares.drop()


def _order_spare(key: PlanKey, plans: DeploymentPlans, world: LeaderView) -> ComputePlan:
    """The order for a plan that takes over after a loss. The deployment's own plan will not serve any more then."""
    deployment = plans.deployment
    taken = memory_budget.sum_memory_bytes(world.orders_besides(deployment.name))
    serving, chosen = b"", b""
    if key.heir_of != NO_EPOCH and plans.active is not None:
        serving, chosen = plans.active.order.plan, plans.active.chosen
    return make_compute_plan(
        key,
        deployment,
        world.cluster,
        b"",
        urgent=False,
        quick=True,
        taken=taken,
        serving=serving,
        chosen=chosen,
    )


def _in_order(serving: PlanRollout, world: LeaderView) -> list[str]:
    """The devices of the serving plan in the order in which their losses are seen to: the leader, who sees to it, last."""
    return sorted(serving.nodes, key=lambda node: (node == world.node, node))
