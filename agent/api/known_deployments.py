"""Known deployments: how each deployment stands, as this agent knows it from the leader, from its own plans and from who is
here. Door: the loaded plans, which it only reads.
"""

from __future__ import annotations

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.leader.status import describe_set_aside
from edgepart.agent.cluster.membership.roster import replace_node_ids
from edgepart.agent.serving.loaded_plans import HeldPlan, LoadedPlans
from edgepart.agent.wire.control import Deployment, Standing
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.errors import Unavailable, UnknownDeployment
from edgepart.planner.plans.plan import Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes


class KnownDeployments:
    """For the event loop's thread."""

    def __init__(self, core: Core, plans: LoadedPlans) -> None:
        self._core = core
        self._plans = plans

    def entry(self, name: str) -> Deployment:
        """The deployment of that name. Raises UnknownDeployment, which names those that exist."""
        entry = self._core.deployments.get(name)
        if entry is None:
            there = ", ".join(e.name for e in self._core.deployments.list_live()) or "nothing"
            raise UnknownDeployment(f"nothing is deployed as {name!r}; deployed: {there}")
        return entry

    def standing(self, entry: Deployment) -> Standing | None:
        """What the leader has said of this version of the deployment; None if it has said nothing yet."""
        standing = self._core.standings.get(entry.name)
        return standing if standing is not None and standing.version == entry.version else None

    def active(self, name: str) -> tuple[Epoch, HeldPlan] | None:
        """The epoch on which new requests start here, and its plan; None if there is none."""
        return self._plans.active(name)

    def plan(self, name: str) -> Plan:
        """The active plan with every device's segments: the leader's order has them all, even if this device
        computes none. Raises UnknownDeployment, or Unavailable if there is no plan."""
        entry = self.entry(name)
        order = self._core.follower.active(name)
        if order is None:
            raise Unavailable(f"no plan of {name!r} is active here: {self.describe(entry)}")
        return plan_from_bytes(order.plan)

    def trouble(self, entry: Deployment) -> str:
        """Why requests cannot be answered now; "" if they can, or if they wait for a plan that is on its
        way."""
        active = self._plans.active(entry.name)
        if active is None:
            return self.describe(entry)
        standing = self.standing(entry)
        if standing is None or standing.state not in ("waiting", "failed"):
            return ""
        held, here = active[1], {member.node for member in self._core.membership.members()}
        lacking = [
            [name for name in part.devices if held.nodes[name] not in here] for part in held.plan.parts
        ]
        if not all(lacking):
            return ""
        gone = ", ".join(dict.fromkeys(name for part in lacking for name in part))
        return f"its plan needs {gone}, lost or gone, and there is no other plan: {self.name_members(standing.text)}"

    def troubles(self) -> str:
        """Why deployments that are to answer cannot do so now, each with its name; "" if all can."""
        # Deployments that are set aside do not count: their models are at fault, and the others are served. Nor do
        # candidates: the deployments that they may replace serve without them.
        told = (
            (entry.name, self.trouble(entry))
            for entry in self._core.deployments.in_use()
            if entry.candidacy is None
        )
        return "; ".join(f"{name}: {why}" for name, why in told if why)

    def describe(self, entry: Deployment) -> str:
        """How the deployment stands, in a sentence: why it is set aside, or what the leader says of it."""
        if entry.fault:
            return describe_set_aside(entry.name, entry.fault)
        standing = self.standing(entry)
        return self.name_members(standing.text) if standing else "waiting for the leader"

    def rounding(self, entry: Deployment) -> str:
        """How far the deployment's answers are off because transfers are rounded; "" if that is not known."""
        standing = self.standing(entry)
        return standing.rounding if standing else ""

    def name_members(self, text: str) -> str:
        """The text with the names of members in place of node ids."""
        return replace_node_ids(
            text, {member.node: member.name for member in self._core.membership.members()}
        )
