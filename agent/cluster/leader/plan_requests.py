"""Requests for plans: which plan of one deployment is computed next, and which one is prepared. Rules, without I/O.

What a deployment needs to be served at all comes first, then what is safer, then what is faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgepart.agent.cluster.leader import memory_budget, returning, spare_requests
from edgepart.agent.cluster.leader.deployment_plans import DeploymentPlans
from edgepart.agent.cluster.leader.orders import make_placement
from edgepart.agent.cluster.leader.plan_keys import make_measured_key
from edgepart.agent.cluster.leader.replan_policy import differs_only_in_measurements, make_compute_plan
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.cluster.state.events import ComputePlan, Effect, PlanComputed, PlanKey
from edgepart.agent.wire.inference import Epoch


def request_plan(
    plans: DeploymentPlans, world: LeaderView, new_epoch: Iterator[Epoch], now: float
) -> Iterator[Effect]:
    """Have the plan computed or prepared that is wanted next, if there is one."""
    key = make_measured_key(plans, world, now)
    plans.planning.look(key, now)
    yield from returning.give_way(plans, key, world, now)
    if plans.next is not None or world.is_outranked(plans.deployment.name):
        return  # Outranked, until this leader follows the other, or leads with a later term.
    if returning.take_kept(plans, key, world, new_epoch, now):
        return
    if world.node not in world.holders(plans.deployment.model):
        return
    current = plans.active
    if current is None or current.order.version != plans.deployment.version or current.loses(world):
        yield from _request_needed_plan(plans, key, world, new_epoch, now)
    elif current.is_overtaken(world):  # By a leader across a split: ours must be later.
        order = replace(current.order, term=world.term, epoch=next(new_epoch))
        plans.next = replace(current, order=order, sent_at={}, instead_of_s=math.inf)
    else:
        yield from _request_better_plan(plans, current, key, world, new_epoch, now)


def _request_needed_plan(
    plans: DeploymentPlans, key: PlanKey, world: LeaderView, new_epoch: Iterator[Epoch], now: float
) -> Iterator[Effect]:
    """Have a plan computed, or prepared if there is one, as none serves the deployment's version."""
    current, planning = plans.active, plans.planning
    found = planning.find_needed_plan(now, waiting=plans.requests_wait)
    if found is not None and _has_room(found, plans, world):
        _start_next(found, plans, world, next(new_epoch))
    elif planning.ask(key, now, b"", urgent=True):
        yield make_compute_plan(
            key,
            plans.deployment,
            world.cluster,
            b"",
            urgent=True,
            quick=plans.requests_wait or (current is not None and current.loses(world)),
            awaited=plans.requests_wait,
            profiles=world.profiles.profiles(),
            taken=_reserved_memory(plans, world),
        )


def _request_better_plan(
    plans: DeploymentPlans,
    current: PlanRollout,
    key: PlanKey,
    world: LeaderView,
    new_epoch: Iterator[Epoch],
    now: float,
) -> Iterator[Effect]:
    """Have plans computed or prepared that are safer or faster than the serving one."""
    planning, spares = plans.planning, plans.spares
    plan, variant = current.order.plan, is_variant(plans.deployment.name)
    returning.remember(plans, current, key, world)
    if (found := planning.better(plan, now)) is not None and _has_room(found, plans, world):
        _start_next(found, plans, world, next(new_epoch))
    elif (known := returning.find_remembered(plans, current, key, world, now)) is not None:
        returning.return_to(known, plans, current, key, world, next(new_epoch))
    elif _awaits_newcomers(plans, current, key):
        yield from _compare(plans, current, key, world, now)
    elif not variant and _is_safer(
        asked := [*spare_requests.find_refuges(plans, current, world, new_epoch, now)], plans, world
    ):
        yield from asked  # Safety comes before speed.
    elif plans.is_stopgap(current, key) and spares.shelters(current.nodes[0]):
        found = planning.find_faster(current.order.latency_s)
        if found is not None and _has_room(found, plans, world):
            _start_next(found, plans, world, next(new_epoch))
        else:
            yield from _compare(plans, current, key, world, now)
    elif not variant and _is_safer(
        asked := [*spare_requests.find_contingency_plans(plans, current, world, new_epoch, now)], plans, world
    ):
        yield from asked
    elif not planning.is_settled(plan):
        yield from _compare(plans, current, key, world, now)
    elif variant:
        yield from spare_requests.find_contingency_plans(plans, current, world, new_epoch, now)


def _awaits_newcomers(plans: DeploymentPlans, current: PlanRollout, key: PlanKey) -> bool:
    """Whether devices have come with which a quick search has yet to be made, and plans cover the loss of each device that
    serves. More plans for losses would be made anew after the newcomers have a part."""
    planning, plan = plans.planning, current.order.plan
    return (
        planning.has_newcomers(key, plan, current.made_for, current.nodes)
        and not planning.is_compared(key, plan)
        and all(map(plans.spares.shelters, current.nodes))
    )


def _is_safer(asked: Sequence[ComputePlan], plans: DeploymentPlans, world: LeaderView) -> bool:
    """Whether a contingency plan is being computed or prepared."""
    return bool(asked) or plans.spares.has_pending(world)


def _compare(
    plans: DeploymentPlans, current: PlanRollout, key: PlanKey, world: LeaderView, now: float
) -> Iterator[ComputePlan]:
    """Compare the serving plan with the best one possible. When a device has joined, a quick search comes first, so
    that it takes part soon, and a thorough one follows. The same holds for a stopgap, which is compared at once."""
    plan, planning = current.order.plan, plans.planning
    stopgap = plans.is_stopgap(current, key)
    hasty = stopgap or planning.has_newcomers(key, plan, current.made_for, current.nodes)
    quick = hasty and not planning.is_compared(key, plan)
    if planning.ask(key, now, plan, urgent=False, quick=quick, held=not (stopgap and quick)):
        yield make_compute_plan(
            key,
            plans.deployment,
            world.cluster,
            plan,
            urgent=False,
            quick=quick,
            profiles=world.profiles.profiles(),
            measured_s=plans.judge.seconds(current.epoch),
            taken=_reserved_memory(plans, world),
            chosen=current.chosen,
            refines=differs_only_in_measurements(current.made_for, key),
        )


def _start_next(found: PlanComputed, plans: DeploymentPlans, world: LeaderView, epoch: Epoch) -> None:
    """Have this plan prepared, to serve when it is ready."""
    weighed = plans.serving and found.current_latency_s < math.inf
    plans.next = make_placement(found, plans, world, epoch, weighed=weighed)
    if not found.quick and plans.planning.is_wanted(found.key):
        plans.planning.settle(found.plan)


def _has_room(found: PlanComputed, plans: DeploymentPlans, world: LeaderView) -> bool:
    """Whether devices still have the memory for which this plan was computed; if not, the plan is
    forgotten."""
    if fine := memory_budget.plan_fits(found, _reserved_memory(plans, world), world.cluster.cards):
        return fine
    plans.planning.forget()
    return False


def _reserved_memory(plans: DeploymentPlans, world: LeaderView) -> dict[str, int]:
    """The bytes of memory that a new plan cannot have, by node: those of other deployments' plans, and of
    this deployment's plan, which serves until the new one is ready."""
    own = [] if plans.active is None else [plans.active.order]
    return memory_budget.sum_memory_bytes([*world.orders_besides(plans.deployment.name), *own])
