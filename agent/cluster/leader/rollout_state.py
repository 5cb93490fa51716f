"""The facts that the rules of one deployment use: the leader's view of the cluster, and plans on their way or
in use.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from edgepart.agent.cluster.leader.replan_policy import ClusterView
from edgepart.agent.cluster.state.drift import DriftBook
from edgepart.agent.cluster.state.events import PlanKey
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.wire.control import DRAINED, FAILED, FLAPPING, LEAVING, READY, Holding, Prepare, Report
from edgepart.agent.wire.inference import NO_EPOCH, Epoch

RESEND_S = 3.0
"""An order is given again after this time if no report shows its effect: reports come every second
(CoreTiming.report_s)."""


@dataclass(frozen=True)
class LeaderView:
    """The leader's view of the cluster."""

    node: str
    term: int
    cluster: ClusterView
    reports: Mapping[str, Report]
    """The reports of the members' present processes, by node."""
    profiles: ProfileBook = field(default_factory=ProfileBook)
    """The known times of segments."""
    orders: tuple[Prepare, ...] = ()
    """The orders of all plans that serve or are on their way, of every deployment."""
    drifts: DriftBook = field(default_factory=DriftBook)
    """How far devices are from their calibration."""
    spares: tuple[Prepare, ...] = ()
    """The orders of all contingency plans that members keep ready, of every deployment."""
    apart: frozenset[tuple[str, str]] = frozenset()
    """Pairs of members that have lost each other for a while, although other members reach both."""
    unsteady: frozenset[str] = frozenset()
    """Flapping members that plans have to leave."""

    @cached_property
    def nodes(self) -> list[str]:
        return [member.node for member in self.cluster.members]

    @cached_property
    def served(self) -> Mapping[str, Epoch]:
        """The latest epoch that any member serves, by deployment."""
        latest: dict[str, Epoch] = {}
        for report in self.reports.values():
            for holding in report.holdings:
                if holding.active and holding.epoch > latest.get(holding.deployment, NO_EPOCH):
                    latest[holding.deployment] = holding.epoch
        return latest

    def is_outranked(self, deployment: str) -> bool:
        """Whether a member serves a plan of a later leader; no epoch of this leader can be later still."""
        return self.served.get(deployment, NO_EPOCH).term > self.term

    @cached_property
    def leaving(self) -> frozenset[str]:
        """Members that serve only until they are not needed any more."""
        return self.unsteady | {m.node for m in self.cluster.members if m.status in (LEAVING, DRAINED)}

    @cached_property
    def staying(self) -> list[str]:
        """Members on which data that must not get lost is kept."""
        return [member.node for member in self.cluster.members if member.status != DRAINED]

    def restrict_to(self, used: Collection[str]) -> LeaderView:
        """This view for a deployment that is planned on the devices `used`: its plans have to leave other
        flapping members."""
        flapping = {m.node for m in self.cluster.members if m.status == FLAPPING}
        return replace(self, unsteady=frozenset(flapping.difference(used))) if flapping else self

    def find_holding(self, node: str, deployment: str, epoch: Epoch) -> Holding | None:
        for holding in self.reports[node].holdings if node in self.reports else ():
            if (holding.deployment, holding.epoch) == (deployment, epoch):
                return holding
        return None

    def orders_besides(self, deployment: str) -> list[Prepare]:
        """The orders of all other deployments' plans that serve or are on their way."""
        return [order for order in self.orders if order.deployment != deployment]

    def continued(self, deployment: str, epoch: Epoch) -> int:
        """About how many steps (or tokens) sequences have made that were continued on that plan in the last seconds; of
        several the most, of none 0."""
        holdings = (self.find_holding(node, deployment, epoch) for node in self.nodes)
        return max((holding.continued for holding in holdings if holding is not None), default=0)

    def safe_holders(self, model: str) -> list[str]:
        """The staying members that hold the model."""
        holders = set(self.holders(model))
        return [node for node in self.staying if node in holders]

    def holders(self, model: str) -> list[str]:
        return [node for node in self.nodes if node in self.reports and model in self.reports[node].models]


@dataclass(slots=True)
class PlanRollout:
    """A plan on its way or in use."""

    order: Prepare
    sent_at: dict[tuple[str, str], float] = field(default_factory=dict)
    """The time when each order was last sent, by node and class of the order."""
    instead_of_s: float = math.inf
    """The latency of the plan that this one is to replace, in seconds; inf if there is none."""
    made_for: PlanKey | None = None
    """The key for which the plan was computed; None if another leader had it computed."""
    chosen: bytes = b""
    """The choices from which the plan was made, as in PlanComputed; empty if they are not known."""
    note: str = ""
    """Why this is not the plan that was first predicted to be the best."""
    hasty: bool = False
    """Whether a quick search found it when devices had come or gone."""
    was_kept: bool = False
    """Whether it served before a power cut, and was kept on disk."""
    tolerance: float | None = None
    """How far the plan's answers may be off, as in PlanComputed."""
    structure: str = ""
    """The plan's structure, as in PlanComputed."""
    step_bytes: float = 0.0
    """The bytes by which states grow in a step, as in PlanComputed; 0 if that is not known."""
    verdict: str = ""
    """The verdict of the plan's trial, as in PlanTried; "" if the plan was not tried yet."""
    quick: bool = False
    """Whether it is a quick plan, as in PlanComputed."""
    waits_since: float = math.inf
    """The time since when the plan, which is ready, has waited for sequences to end; inf if it has not."""

    @property
    def epoch(self) -> Epoch:
        return self.order.epoch

    @property
    def nodes(self) -> list[str]:
        """The nodes that have a program."""
        return [node for _, node in self.order.names]

    def name_of(self, node: str) -> str:
        """The name of a device of the plan; the node id if the node has no program."""
        return next((name for name, known in self.order.names if known == node), node)

    def loading(self, world: LeaderView) -> list[str]:
        """The names of the plan's devices that are not ready."""

        def is_ready(node: str) -> bool:
            holding = world.find_holding(node, self.order.deployment, self.epoch)
            return holding is not None and holding.state == READY

        return [name for name, node in self.order.names if not is_ready(node)]

    def is_ready(self, world: LeaderView) -> bool:
        return not self.loading(world)

    def can_run(self, world: LeaderView) -> bool:
        """Whether all devices of the plan are members, and none has failed to load it."""

        here = world.nodes

        def fine(node: str) -> bool:
            holding = world.find_holding(node, self.order.deployment, self.epoch)
            return node in here and (holding is None or holding.state != FAILED)

        return all(map(fine, self.nodes))

    def is_overtaken(self, world: LeaderView) -> bool:
        """Whether a member serves a later epoch, and so will never take this plan."""
        return world.served.get(self.order.deployment, NO_EPOCH) > self.epoch

    def loses(self, world: LeaderView) -> bool:
        """Whether a device of the plan is leaving, or two of its devices do not reach each other any more."""
        return not world.leaving.isdisjoint(self.nodes) or self.is_cut(world)

    def is_cut(self, world: LeaderView) -> bool:
        """Whether two devices of the plan do not reach each other any more, so that it answers nothing."""
        return any({*self.nodes}.issuperset(pair) for pair in world.apart)


class Epochs(Iterator[Epoch]):
    """The epochs of one leadership, over all deployments."""

    def __init__(self, term: int) -> None:
        self.last = Epoch(term, 0)
        """The epoch that was given last."""

    def __next__(self) -> Epoch:
        self.last = Epoch(self.last.term, self.last.number + 1)
        return self.last


def epochs(term: int) -> Epochs:
    """The epochs of the leadership of that term."""
    return Epochs(term)
