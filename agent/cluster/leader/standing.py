"""Standing: what members are told of how one deployment stands. Rules, without I/O. status.py has the words for it."""

from __future__ import annotations

import math

from edgepart.agent.cluster.leader import status
from edgepart.agent.cluster.leader.deployment_plans import DeploymentPlans
from edgepart.agent.cluster.leader.kept_plan import SERVED_BEFORE
from edgepart.agent.cluster.leader.replan_policy import select_members
from edgepart.agent.cluster.leader.rollout_state import LeaderView
from edgepart.agent.cluster.state.events import RoundingMeasured
from edgepart.agent.wire.control import UNLOADABLE, Standing
from edgepart.agent.wire.inference import NO_EPOCH

HASTY = "found by a quick search, as devices have come or gone; a thorough one follows"
"""What is said of the plan that serves until the thorough search is over."""
MOST_NOTE = 2000
"""The longest note about a deployment, in characters."""


def make_standing(plans: DeploymentPlans, rounding: RoundingMeasured | None, world: LeaderView) -> Standing:
    """How the deployment stands. `rounding`: the last measurement of how far answers are off."""
    state, text = _describe_state(plans, world)
    failed = plans.planning.error if state == "failed" else None
    active, coming = plans.active, plans.next
    return Standing(
        term=world.term,
        deployment=plans.deployment.name,
        version=plans.deployment.version,
        state=state,
        text=text,
        acknowledged=_is_acknowledged(plans, world),
        epoch=active.epoch if active else NO_EPOCH,
        devices=tuple(name for name, _ in active.order.names) if active else (),
        error=failed.error if failed else plans.trouble,
        error_kind=failed.kind if failed else UNLOADABLE if state == "failed" else "",
        note=_describe_note(plans, world),
        rounding=rounding.text if rounding and active and rounding.epoch == active.epoch else "",
        weights=status.weights_on_their_way(coming, world)
        if state == "preparing" and coming is not None
        else (),
        covered=plans.spares.covers(active, world, tried=plans.timing.tries) if active else (),
    )


def _is_acknowledged(plans: DeploymentPlans, world: LeaderView) -> bool:
    """Whether the version survives the loss of any device, and no member answers new requests with an
    earlier one. Once that was so, it stays so: a member that comes later is told of this version before it
    serves."""
    active, version = plans.active, plans.deployment.version
    if active is None or not plans.serving or not status.is_safe(plans.deployment, world):
        return False
    if plans.taken_over != version and status.serves_everywhere(active, world):
        plans.taken_over = version
    return plans.taken_over == version


def _describe_note(plans: DeploymentPlans, world: LeaderView) -> str:
    """Why the serving plan is not the one that was first predicted to be the best, which devices it does without, what
    engines are refused, and whether a better plan is still searched for."""
    active = plans.active
    engines = status.describe_refused_engines(active, plans.deployment.model, world)
    missing = status.explain_unused_devices(plans.deployment, plans.planning.key_devices(), world.cluster)
    here = {member.node for member in world.cluster.members}
    left_out = [f"{why}; plans do without it for a while" for why in plans.planning.explain_avoided(here)]
    texts = [plans.note, missing, *left_out, engines]
    if active is not None and not plans.planning.is_settled(active.order.plan):
        texts += [plans.kept.fault, SERVED_BEFORE if active.was_kept else HASTY if active.hasty else ""]
    return "; ".join(filter(None, texts))[:MOST_NOTE]


def _describe_state(plans: DeploymentPlans, world: LeaderView) -> tuple[str, str]:
    """The state, and a text that says more."""
    deployment, coming, error = plans.deployment, plans.next, plans.planning.error
    holders = world.holders(deployment.model)
    waits = coming is not None and coming.waits_since < math.inf
    if coming is not None and not waits:
        return "preparing", status.describe_preparing(coming, world)
    if plans.active is not None and plans.serving:
        what = "another" if coming is not None and coming.instead_of_s == math.inf else "a faster"
        later = f"; {what} plan is ready, and waits for sequences to end" if waits else ""
        return "serving", f"{status.describe_serving(plans.active)}{later}"
    if missing := plans.kept.missing:
        return "waiting", f"{', '.join(missing)} served it before, and may come back"
    if not holders:
        return "waiting", "no member here stores its model; start one that does"
    if world.node not in holders:
        return "storing", status.describe_storing(deployment)
    if error is not None:
        return "failed", error.error
    if not plans.planning.key_devices():
        if plans.trouble and select_members(world.cluster, deployment, ()):
            return "failed", plans.trouble  # Its devices are here, but none can load it.
        return "waiting", status.explain_no_devices(deployment, world)
    return "planning", "computing a plan"
