"""The plans of one deployment, and what is known of them: the facts that rollout.py and the rules beside it share.

The rules are functions of these facts: they change them, and return the orders that follow. Without I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from edgepart.agent.cluster.leader.contingency import ContingencyPlans
from edgepart.agent.cluster.leader.drift_policy import DriftPolicy
from edgepart.agent.cluster.leader.kept_plan import KeptOnDisk
from edgepart.agent.cluster.leader.remembered_plans import RememberedPlans
from edgepart.agent.cluster.leader.replan_policy import PlanningTiming, ReplanPolicy
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.events import Effect, PlanKey, SendMessage
from edgepart.agent.cluster.state.judging import PlanJudge
from edgepart.agent.wire.control import Deployment, Retire, Version
from edgepart.agent.wire.inference import Epoch


@dataclass(slots=True)
class DeploymentPlans:
    """The plans of one deployment, as its leader has them."""

    deployment: Deployment
    """What is wanted now."""
    timing: PlanningTiming
    planning: ReplanPolicy
    """The plans that the deployment may move to."""
    refining: DriftPolicy
    """The drifts that it is planned with."""
    spares: ContingencyPlans
    """The plans that take over after a loss."""
    kept: KeptOnDisk
    """The plan that served before the agents ended."""
    active: PlanRollout | None
    """The plan that serves, perhaps an earlier version; None if none does."""
    requests_wait: bool
    """Whether a plan that served cannot run any more, so that requests wait for the next one."""
    is_new: bool
    """Whether requests waited for the first plan and no plan was lost since: it is a variant that may not last."""
    next: PlanRollout | None = None
    """The plan that is to serve when it is ready; None if there is none."""
    remembered: RememberedPlans = field(default_factory=RememberedPlans)
    """The plans that served on other sets of devices."""
    judge: PlanJudge = field(default_factory=PlanJudge)
    """What requests take on the serving plan."""
    note: str = ""
    """Why the serving plan is not the one that was first predicted to be the best."""
    trouble: str = ""
    """Which device could not load its part of a plan last, and why; "" if a plan has begun to serve since."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """(structure, reason) of plans that were tried and gave wrong answers, as in PlanKey."""
    refused_for: Version | None = None
    """The version of the deployment whose plans these are."""
    trying: Epoch | None = None
    """The epoch of the plan that is being tried; None if none is."""
    disappointed: tuple[PlanKey, str] | None = None
    """The key for which a plan was measured to be slower than one device, and the plan's digest."""
    taken_over: Version | None = None
    """The last version of the deployment that all members have taken over."""

    @property
    def serving(self) -> bool:
        """Whether a plan of the wanted version is active."""
        return self.active is not None and self.active.order.version == self.deployment.version

    @property
    def refusal(self) -> tuple[str, str] | None:
        """The error and its kind if nothing serves and another try on these devices would be in vain; else
        None."""
        if self.active is not None or self.next is not None:
            return None
        if self.planning.error is not None and self.planning.error.final:
            return self.planning.error.error, self.planning.error.kind
        if self.trouble and not self.planning.key_devices():
            return self.trouble, ""
        return None

    @property
    def most_spares(self) -> float:
        """The most contingency plans that are kept ready; inf if the user does not limit them."""
        return math.inf if self.timing.spares is None else self.timing.spares

    def placements(self) -> list[PlanRollout]:
        """All plans of this deployment, the active one first."""
        return [p for p in (self.active, self.next, *self.spares) if p is not None]

    def is_stopgap(self, current: PlanRollout, key: PlanKey) -> bool:
        """Whether the plan is on one device only because there was no time for a better one after a loss: a variant that is
        new has to last first."""
        hasty = current.quick or current.made_for is None
        chosen = current.instead_of_s < math.inf  # A search found it to be better than the plan before it.
        unsettled = not self.planning.is_settled(current.order.plan)
        return (
            len(current.nodes) == 1 < len(key.devices)
            and hasty
            and not chosen
            and unsettled
            and not self.is_new
        )

    def give_up_next(self, world: LeaderView) -> list[Effect]:
        """Do without the plan on its way; return the orders to drop it."""
        if self.next is None:
            return []
        order = Retire(world.term, self.deployment.name, self.next.epoch)
        self.next = None
        return [SendMessage(node, order) for node in world.nodes]
