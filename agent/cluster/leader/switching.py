"""Switching: which plan of one deployment serves. Plans that cannot run any more are given up, plans for a loss step in,
and the next plan serves when it is ready and worth the move. Rules, without I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from edgepart.agent.cluster.leader.deployment_plans import DeploymentPlans
from edgepart.agent.cluster.leader.link_rates import slowest_bytes_per_s
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.cluster.state.cards import parse_card
from edgepart.agent.cluster.state.events import Effect
from edgepart.agent.cluster.state.judging import compute_slowdown, correct_prediction_s, predict_busiest_s
from edgepart.agent.wire.control import FAILED
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.plans.plan_bytes import plan_from_bytes

REREADING_S = 30.0
"""The longest pause of a text whose plan changes that a move takes into account, in seconds: all of the text is read again.
While texts are continued a move waits for as long as it takes to gain that pause; with a higher limit long texts pause less
often, and better plans serve later."""
SILENCE = 10.0
"""How many times as bad as slower tokens a pause in the middle of a text is. A move waits for texts to end until it would
have gained so many times their pause, or for TEXTS_END_S."""
TEXTS_END_S = 60.0
"""Within how many seconds most texts end. With more, a better plan serves later where one text follows the other; with
less, long texts pause for a plan that is only faster."""


def abandon(plans: DeploymentPlans, world: LeaderView, now: float) -> list[Effect]:
    """Give up plans that can no longer run, and leave out devices that could not load their part."""
    for placement in filter(None, (plans.active, plans.next)):
        for node in placement.nodes:
            holding = world.find_holding(node, plans.deployment.name, placement.epoch)
            if holding is not None and holding.state == FAILED:
                plans.trouble = f"{placement.name_of(node)} could not load its part: {holding.error}"
                if placement is plans.next and placement.was_kept:
                    plans.kept.refuse(plans.trouble)  # The plan may be to blame, and not the device.
                else:
                    plans.planning.avoid(node, now, plans.trouble)
    plans.spares.give_up(world)
    if plans.active is not None and not plans.active.can_run(world):
        plans.active, plans.requests_wait, plans.is_new = None, True, False
    coming = plans.next
    if coming is None:
        return []
    outdated = coming.order.version != plans.deployment.version or coming.is_overtaken(world)
    if outdated or not coming.can_run(world) or coming.loses(world):
        return plans.give_up_next(world)
    return []


def step_in(plans: DeploymentPlans, world: LeaderView, new_epoch: Iterator[Epoch]) -> None:
    """Let a contingency plan take over from a plan that has lost a device, or has a device that
    leaves."""
    if world.is_outranked(plans.deployment.name):
        return
    active = plans.active
    lost = active is None and plans.requests_wait
    if not lost and (plans.next is not None or active is None or not active.loses(world)):
        return
    waiting = lost or (active is not None and active.is_cut(world))
    spare = plans.spares.best(world, waiting=waiting)
    if spare is None or spare.order.version != plans.deployment.version:
        return
    if spare.is_ready(world):
        if any(plans.next is one for one in plans.spares):
            plans.next = None  # It was to take over, too.
        _serve(spare, plans, world, new_epoch)
    elif plans.next is None:
        plans.next = spare  # Less of it is missing than of any new plan.


def promote(
    plans: DeploymentPlans, world: LeaderView, new_epoch: Iterator[Epoch], now: float
) -> list[Effect]:
    """Let the next plan serve if it is ready. If measurements say that it is not worth the move, it is given up."""
    coming, active = plans.next, plans.active
    if coming is None or not coming.is_ready(world):
        return []
    waiting = plans.requests_wait or (active is not None and active.loses(world))
    if plans.timing.tries and not coming.verdict and not waiting:
        return []  # Users' requests must not try it, unless they would wait.
    if (
        plans.serving
        and active is not None
        and not active.loses(world)
        and _falls_short(coming, plans, world)
    ):
        plans.planning.settle(active.order.plan)
        return plans.give_up_next(world)
    if waiting or not _waits_for_sequences(coming, plans, world, now):
        _serve(coming, plans, world, new_epoch)
    return []


def _serve(
    placement: PlanRollout, plans: DeploymentPlans, world: LeaderView, new_epoch: Iterator[Epoch]
) -> None:
    """Have new requests start on this plan. Other loaded plans may cover the next loss; they get a later
    epoch, because members drop plans of earlier epochs."""
    before = [one for one in (plans.active, *plans.spares) if one is not None and one is not placement]
    plans.active, plans.trouble, plans.requests_wait = placement, "", False
    plans.note = placement.note
    if plans.next is not None and plans.next.epoch <= placement.epoch:
        plans.next = None
    version = placement.order.version
    usable = [
        one for one in before if one.order.version == version and one.can_run(world) and not one.loses(world)
    ]
    if is_variant(plans.deployment.name):
        usable = []
    plans.spares.serves(
        placement,
        [
            replace(one, order=replace(one.order, term=world.term, epoch=next(new_epoch)), sent_at={})
            for one in usable
        ],
    )


def _waits_for_sequences(
    placement: PlanRollout, plans: DeploymentPlans, world: LeaderView, now: float
) -> bool:
    """Whether the plan, which is ready, should not serve yet: all steps of sequences that are continued on the serving
    plan would have to be made again, or their states sent to other devices. The more steps and the less it gains, the
    longer it waits for them to end."""
    serving = plans.active
    if not plans.serving or serving is None or placement.order.plan == serving.order.plan:
        return False
    steps = world.continued(serving.order.deployment, serving.epoch)
    if not steps:
        return False
    placement.waits_since = min(placement.waits_since, now)
    # Some plans are not made for the sake of speed, but because devices have come.
    if placement.instead_of_s == math.inf:
        return now < placement.waits_since + TEXTS_END_S
    gain = 1 - placement.order.latency_s / placement.instead_of_s
    pause_s = min(REREADING_S, steps * placement.order.latency_s)
    if placement.step_bytes and serving.step_bytes:
        rate = slowest_bytes_per_s({*placement.nodes, *serving.nodes}, world.cluster.cards)
        if rate:  # The states go from device to device.
            pause_s = min(pause_s, steps * placement.step_bytes / rate)
    if gain <= 0:
        return False
    gained_s = pause_s / gain
    return now < placement.waits_since + max(gained_s, min(SILENCE * gained_s, TEXTS_END_S))


def _falls_short(placement: PlanRollout, plans: DeploymentPlans, world: LeaderView) -> bool:
    """Whether the measured times of the plan's segments say that the move is not worth its cost."""
    if placement.instead_of_s == math.inf or not world.profiles.profiles(1):
        return False
    plan, kinds = plan_from_bytes(placement.order.plan), {}
    for name, node in placement.order.names:
        if node in world.cluster.cards:
            device = parse_card(world.cluster.cards[node].document).device
            device = device.with_drift(plans.refining.known_drift(world.drifts, node, plans.deployment.name))
            kinds[name] = (device.pace, device.threads)
    ratio = compute_slowdown(plan, kinds, world.profiles)
    if ratio is None:
        return False
    many = plans.deployment.options.objective == "throughput"
    return correct_prediction_s(plan, ratio, predict_busiest_s(plan), many=many) >= placement.instead_of_s
