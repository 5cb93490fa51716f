"""Trials: which plan is tried next on made-up inputs, and what becomes of a plan that was tried. Rules, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgepart.agent.cluster.leader.deployment_plans import DeploymentPlans
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.events import (
    RIGHT,
    SUSPECT,
    UNTRIED,
    WRONG,
    Effect,
    PlanTried,
    SendMessage,
    TryPlan,
)
from edgepart.agent.wire.control import READY, Retire
from edgepart.agent.wire.inference import NO_EPOCH


def try_next(plans: DeploymentPlans, world: LeaderView) -> Iterator[TryPlan]:
    """Try one plan at a time, as soon as all of its devices and the leader are ready. A plan that had to
    serve untried comes first."""
    if not plans.timing.tries or plans.trying is not None:
        return
    active, deployment = plans.active, plans.deployment
    for placement in plans.placements():
        mine = world.find_holding(world.node, deployment.name, placement.epoch)
        if not placement.verdict and mine and mine.state == READY and placement.is_ready(world):
            plans.trying = placement.epoch
            yield TryPlan(
                deployment.name,
                placement.epoch,
                deployment.model,
                deployment.model_bytes,
                placement.tolerance,
                trusted=active.epoch if active is not None and active.verdict == RIGHT else NO_EPOCH,
            )
            return


def take_verdict(plans: DeploymentPlans, found: PlanTried, term: int, nodes: Iterable[str]) -> list[Effect]:
    """Take the verdict on a plan that was tried. A plan that gave wrong answers is given up and never
    made again."""
    if plans.trying == found.epoch:
        plans.trying = None
    placement = next((one for one in plans.placements() if one.epoch == found.epoch), None)
    if placement is None:
        return []
    doubtful = found.verdict == SUSPECT and bool(plans.refused)  # If two plans fail, the inputs are to blame.
    placement.verdict = UNTRIED if doubtful else found.verdict
    if placement.verdict == UNTRIED:
        said = f"its plan was not tried before it served: {found.text}"
        placement.note = "; ".join(filter(None, (placement.note, said)))
        if placement is plans.active:
            plans.note = placement.note
    return _refuse(plans, placement, found.text, term, nodes) if placement.verdict in (WRONG, SUSPECT) else []


def _refuse(
    plans: DeploymentPlans, placement: PlanRollout, why: str, term: int, nodes: Iterable[str]
) -> list[Effect]:
    devices = ", ".join(name for name, _ in placement.order.names)
    plans.refused.append((placement.structure, f"a plan on {devices} is not served: {why}"))
    plans.refused_for = plans.deployment.version
    plans.planning.refuse(placement.order.plan)
    if placement is plans.active:
        plans.active, plans.requests_wait = None, True
        return []
    if placement is plans.next:
        plans.next = None
    plans.spares.refuse(placement)
    order = Retire(term, plans.deployment.name, placement.epoch)
    return [SendMessage(node, order) for node in nodes]


def forget_refused(plans: DeploymentPlans) -> None:
    """Forget which plans were refused if the same name now has another model or other options."""
    if plans.refused and plans.refused_for != plans.deployment.version:
        plans.refused = []
