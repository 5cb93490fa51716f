"""Keys: for which conditions plans of one deployment are asked, and what measurements add to them. Rules, without I/O.

A deployment is planned anew when its key changes: the devices have changed, one of them computes slower than it did, or a
plan gave wrong answers or took longer than one device.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from edgepart.agent.cluster.leader.deployment_plans import DeploymentPlans
from edgepart.agent.cluster.leader.rollout_state import LeaderView
from edgepart.agent.cluster.state.events import PlanKey


def make_key(plans: DeploymentPlans, world: LeaderView, now: float, without: str = "") -> PlanKey:
    """The key of the plan that is wanted, with nothing that was measured while plans served."""
    key = plans.planning.key(world.cluster, plans.deployment, now, without=without)
    return replace(key, refused=tuple(plans.refused))


def make_measured_key(plans: DeploymentPlans, world: LeaderView, now: float) -> PlanKey:
    """The key of the plan that is wanted. Drifts that are due are taken over, and a plan that disappoints is noted."""
    key = make_key(plans, world, now)
    _refine(plans, key, world, now)
    key = _with_drifts(key, plans)
    return replace(key, disappointed=_disappointment(plans, key))


def make_key_without(node: str, plans: DeploymentPlans, world: LeaderView, now: float) -> PlanKey:
    """The key of the plan that is wanted if that device is lost. Where states are mirrored, it depends on the plan that
    serves."""
    key = _with_drifts(make_key(plans, world, now, without=node), plans)
    if plans.active is None or not plans.deployment.options.mirrors:
        return key
    return replace(key, heir_of=plans.active.epoch)


def make_key_alone(lost: str, plans: DeploymentPlans, world: LeaderView, now: float) -> PlanKey:
    """The key of a refuge without that device. It is on a member that stores the model, if there is one, so that no
    weights have to be moved."""
    key = make_key_without(lost, plans, world, now)
    holders = world.holders(plans.deployment.model)
    devices = tuple(device for device in key.devices if device[0] in holders)
    return replace(key, devices=devices or key.devices, alone=True)


def _with_drifts(key: PlanKey, plans: DeploymentPlans) -> PlanKey:
    return replace(key, drifts=plans.refining.drifts(node for node, _, _ in key.devices))


def _refine(plans: DeploymentPlans, key: PlanKey, world: LeaderView, now: float) -> None:
    """Take over drifts that are due; they count from the next plan on."""
    settled = plans.serving and plans.next is None
    serving = plans.active.nodes if settled and plans.active is not None else None
    nodes = [node for node, _, _ in key.devices]
    plans.refining.look(world.drifts, key.deployment, key.version, nodes, serving, now)


def _disappointment(plans: DeploymentPlans, key: PlanKey) -> str:
    """The digest of a plan that was measured to be slower than one device is predicted to be, which is a
    reason to plan again, once; "" if there is none."""
    active = plans.active
    if plans.disappointed is not None and plans.disappointed[0] != key:
        if replace(plans.disappointed[0], drifts=key.drifts) != key:
            plans.note = ""
        plans.disappointed = None
    if (
        plans.disappointed is None
        and active is not None
        and plans.deployment.options.strategy == "auto"
        and plans.deployment.options.objective == "latency"
        and plans.judge.disappoints(active.epoch, len(active.nodes))
    ):
        plans.disappointed = key, sha256(active.order.plan).hexdigest()[:16]
    return plans.disappointed[1] if plans.disappointed else ""
