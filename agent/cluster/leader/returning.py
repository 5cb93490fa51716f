"""Returning: when one deployment goes back to a plan that served before, which takes no search. The plan is remembered for
the devices that are there again, or was kept on disk before the agents ended. Rules, without I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from edgepart.agent.cluster.leader import memory_budget
from edgepart.agent.cluster.leader.deployment_plans import DeploymentPlans
from edgepart.agent.cluster.leader.remembered_plans import RememberedPlan
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.events import Effect, PlanKey
from edgepart.agent.wire.inference import Epoch


def take_kept(
    plans: DeploymentPlans, key: PlanKey, world: LeaderView, new_epoch: Iterator[Epoch], now: float
) -> bool:
    """Have the plan prepared that was kept on disk, if it can serve and nothing but a stopgap does. Returns whether it
    is, or its devices are still waited for."""
    current, kept = plans.active, plans.kept
    if current is not None and not plans.is_stopgap(current, key):
        kept.forget()
    order = kept.look(key, plans.deployment.version, now)
    if order is None:
        return current is None and bool(kept.missing)
    kept.forget()
    if current is not None and not plans.planning.is_gain(order.latency_s, current.order.latency_s):
        return False
    own = [] if current is None else [current.order]
    others = world.orders_besides(plans.deployment.name)
    if not memory_budget.plans_fit([*others, *own, order], world.cluster.cards):
        kept.refuse("its devices have not enough memory for it beside the other plans")
        return False
    plans.next = PlanRollout(
        replace(order, term=world.term, epoch=next(new_epoch), weighed=False),
        instead_of_s=math.inf if current is None else current.order.latency_s,
        was_kept=True,
    )
    return True


def remember(plans: DeploymentPlans, current: PlanRollout, key: PlanKey, world: LeaderView) -> None:
    """Remember the serving plan for the key's devices, unless it was made for others and a better one may be found."""
    settled = plans.planning.is_settled(current.order.plan)
    if settled or not _is_made_for_others(current, key):
        took_s = _known_latency_s(plans, current)
        plans.remembered.note(current, key, world.cluster.cards, best=settled, latency_s=took_s)


def find_remembered(
    plans: DeploymentPlans, current: PlanRollout, key: PlanKey, world: LeaderView, now: float
) -> RememberedPlan | None:
    """The plan that served before, when just these devices were there, if `current` was made for others and is slower;
    None if there is none."""
    if current.made_for is None or not _is_made_for_others(current, key):
        return None
    if now < plans.planning.ask_at(current.order.plan, urgent=False):
        return None
    cards = world.cluster.cards
    known = plans.remembered.find(key, cards)
    if known is None:
        return None
    if not plans.planning.is_gain(known.latency_with(key.drifts), _known_latency_s(plans, current)):
        return None
    orders = [*world.orders_besides(plans.deployment.name), current.order, known.placement.order]
    return known if memory_budget.plans_fit(orders, cards) else None


def give_way(plans: DeploymentPlans, key: PlanKey, world: LeaderView, now: float) -> list[Effect]:
    """Give up a plan on its way for one that is remembered for the devices that have come since, and is better than it
    and than the serving one."""
    serving, coming = plans.active, plans.next
    if (
        not plans.serving
        or serving is None
        or serving.loses(world)
        or coming is None
        or coming.is_ready(world)
    ):
        return []
    if all(find_remembered(plans, one, key, world, now) is not None for one in (coming, serving)):
        return plans.give_up_next(world)
    return []


def return_to(
    known: RememberedPlan,
    plans: DeploymentPlans,
    current: PlanRollout,
    key: PlanKey,
    world: LeaderView,
    epoch: Epoch,
) -> None:
    """Have a plan prepared that served before. It needs no search if nothing has changed since the last one."""
    sources = tuple(world.holders(plans.deployment.model))
    order = replace(known.placement.order, term=world.term, epoch=epoch, sources=sources, weighed=False)
    plans.next = known.again(order, key, _known_latency_s(plans, current))
    plans.remembered.forget(key)  # Until it serves: it may fall short, or fail its trial.
    if known.best and known.key == key:
        plans.planning.settle(order.plan)


def _known_latency_s(plans: DeploymentPlans, serving: PlanRollout) -> float:
    """The seconds that a request takes, as predicted or, if that is more, as measured; the predicted seconds between
    two requests if throughput is the objective."""
    many = plans.deployment.options.objective == "throughput"
    return max(serving.order.latency_s, 0.0 if many else plans.judge.seconds(serving.epoch))


def _is_made_for_others(placement: PlanRollout, key: PlanKey) -> bool:
    """Whether the plan was not computed for just the key's devices, or that is not known."""
    made_for = placement.made_for.devices if placement.made_for is not None else ()
    return {node for node, _, _ in made_for} != {node for node, _, _ in key.devices}
