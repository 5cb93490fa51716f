"""Rollout: takes one deployment from plan to plan without a gap (make before break), on the leader. Rules,
without I/O.

The wanted state (an active plan, perhaps a next one) is compared with the members' reports, and the missing
orders are given. So lost orders, restarts and new leaders need no cases of their own. The rules are in the modules that
`step` calls one after the other, and deployment_plans.py has the facts that they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgepart.agent.cluster.leader import orders, plan_requests, spare_requests, switching, trials
from edgepart.agent.cluster.leader.contingency import ContingencyPlans
from edgepart.agent.cluster.leader.deployment_plans import DeploymentPlans
from edgepart.agent.cluster.leader.drift_policy import DriftPolicy
from edgepart.agent.cluster.leader.kept_plan import KeptOnDisk
from edgepart.agent.cluster.leader.model_copies import ModelCopies
from edgepart.agent.cluster.leader.plan_keys import make_key
from edgepart.agent.cluster.leader.replan_policy import PlanningTiming, ReplanPolicy
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.leader.standing import make_standing
from edgepart.agent.cluster.state.events import (
    RIGHT,
    Effect,
    PlanComputed,
    PlanFailed,
    PlanTried,
    RoundingMeasured,
    SendMessage,
)
from edgepart.agent.wire.control import Deployment, Latency, Prepare, Standing
from edgepart.agent.wire.inference import Epoch


class DeploymentRollout:
    """The active and the next plan of one deployment."""

    def __init__(
        self,
        deployment: Deployment,
        adopted: Prepare | None,
        timing: PlanningTiming,
        *,
        awaited: bool = False,
        held: Iterable[Prepare] = (),
        kept: Prepare | None = None,
    ) -> None:
        """`adopted`: the order of the plan that serves already. `awaited`: whether requests wait for the
        first plan, which is then a quick plan. `held`: the orders of plans that this device has ready beside
        `adopted`. `kept`: the order of the plan that served last, which counts if nothing is adopted."""
        on_disk = KeptOnDisk(None if adopted else kept)
        self.plans = DeploymentPlans(
            deployment,
            timing,
            ReplanPolicy(timing),
            DriftPolicy(timing.refining),
            ContingencyPlans(adopted, held),
            on_disk,
            active=PlanRollout(adopted, verdict=RIGHT) if adopted else None,
            requests_wait=awaited or on_disk.order is not None,
            is_new=awaited,
        )
        self.standing: Standing | None = None
        """How the deployment stands, as members were told last; None if they were not told yet."""
        self.rounding: RoundingMeasured | None = None
        """The last measurement of how far answers are off."""
        self._copies = ModelCopies()

    def step(self, world: LeaderView, new_epoch: Iterator[Epoch], now: float) -> list[Effect]:
        """Give the orders that are missing."""
        plans = self.plans
        trials.forget_refused(plans)
        key = make_key(plans, world, now)
        world = world.restrict_to([node for node, _, _ in key.devices])
        effects = switching.abandon(plans, world, now)
        switching.step_in(plans, world, new_epoch)
        effects += switching.promote(plans, world, new_epoch, now)
        effects += self._copies.store(plans.deployment, world, now)
        effects += plan_requests.request_plan(plans, world, new_epoch, now)
        spare_requests.make_room(plans, world)
        effects += orders.retire(plans, world)
        effects += orders.give_orders(plans, world, now)
        effects += trials.try_next(plans, world)
        effects += self._tell_standing(world)
        return effects

    def answered(self, result: PlanComputed | PlanFailed, now: float) -> None:
        """Take the answer to ComputePlan."""
        planning = self.plans.planning
        planning.answered(result, now)
        if isinstance(result, PlanComputed) and planning.is_wanted(result.key):
            self.plans.judge.single_s = result.single_s

    def take_verdict(self, found: PlanTried, term: int, nodes: Iterable[str]) -> list[Effect]:
        """Take the verdict on a plan that was tried."""
        return trials.take_verdict(self.plans, found, term, nodes)

    def note_latency(self, latency: Latency, gateway: str = "") -> bool:
        """Note the latency of requests through a gateway on a plan of this deployment; return whether that is
        news."""
        return self.plans.judge.hears(latency, gateway)

    def wake_at(self, now: float) -> float:
        """The next time when something may become due without an event; inf if nothing may."""
        plans = self.plans
        return min(
            orders.resend_at(plans, now),
            self._copies.wake_at(now),
            plans.planning.wake_at(now),
            plans.refining.wake_at(now),
            plans.kept.wake_at(now),
        )

    def _tell_standing(self, world: LeaderView) -> list[Effect]:
        now = make_standing(self.plans, self.rounding, world)
        if now == self.standing:
            return []
        self.standing = now
        return [SendMessage(node, now) for node in world.nodes]
