"""What the leader sees, and a plan that it has on its way or in use: what the rules of one deployment look at and keep.
Facts.
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
"""An order whose effect no report shows is given again after this."""


@dataclass(frozen=True)
class LeaderView:
    """What the leader sees."""

    node: str
    term: int
    cluster: ClusterView
    reports: Mapping[str, Report]
    """Of the members' present processes only."""
    profiles: ProfileBook = field(default_factory=ProfileBook)
    """What segments take."""
    orders: tuple[Prepare, ...] = ()
    """All plans that serve or are on their way, of every deployment."""
    drifts: DriftBook = field(default_factory=DriftBook)
    """How far devices are from what they were calibrated to do."""
    spares: tuple[Prepare, ...] = ()
    """Plans that members keep ready for losses, of every deployment."""
    apart: frozenset[tuple[str, str]] = frozenset()
    """Pairs of members that have lost each other for a while, though others reach both."""
    unsteady: frozenset[str] = frozenset()
    """Those that come and go, and are to be left."""

    @cached_property
    def nodes(self) -> list[str]:
        return [member.node for member in self.cluster.members]

    @cached_property
    def served(self) -> Mapping[str, Epoch]:
        """By deployment, the latest epoch that any member serves."""
        latest: dict[str, Epoch] = {}
        for report in self.reports.values():
            for holding in report.holdings:
                if holding.active and holding.epoch > latest.get(holding.deployment, NO_EPOCH):
                    latest[holding.deployment] = holding.epoch
        return latest

    def is_outranked(self, deployment: str) -> bool:
        """Whether a member serves a plan of a later leader: none of this one's can be later still."""
        return self.served.get(deployment, NO_EPOCH).term > self.term

    @cached_property
    def leaving(self) -> frozenset[str]:
        """Those that serve until they are not needed any more."""
        return self.unsteady | {m.node for m in self.cluster.members if m.status in (LEAVING, DRAINED)}

    @cached_property
    def staying(self) -> list[str]:
        """Those that what must not get lost is kept on."""
        return [member.node for member in self.cluster.members if member.status != DRAINED]

    def doing_without(self, used: Collection[str]) -> LeaderView:
        """The same, for a deployment that can do with these devices: those that come and go are to be left."""
        flapping = {m.node for m in self.cluster.members if m.status == FLAPPING}
        return replace(self, unsteady=frozenset(flapping.difference(used))) if flapping else self

    def holding(self, node: str, deployment: str, epoch: Epoch) -> Holding | None:
        for holding in self.reports[node].holdings if node in self.reports else ():
            if (holding.deployment, holding.epoch) == (deployment, epoch):
                return holding
        return None

    def safe_holders(self, model: str) -> list[str]:
        """Those of them that stay."""
        holders = set(self.holders(model))
        return [node for node in self.staying if node in holders]

    def holders(self, model: str) -> list[str]:
        return [node for node in self.nodes if node in self.reports and model in self.reports[node].models]


@dataclass(slots=True)
class PlanRollout:
    """A plan on its way or in use."""

    order: Prepare
    sent_at: dict[tuple[str, str], float] = field(default_factory=dict)
    """When which order last went to which node."""
    instead_of_s: float = math.inf
    """What the plan that it is to replace takes."""
    made_for: PlanKey | None = None
    """What it was computed for; None where another leader had it computed."""
    chosen: bytes = b""
    """What it was made from, where that is known."""
    note: str = ""
    """Why it is not the one that was predicted to be the best at first."""
    tolerance: float | None = None
    """What its answers may be off by, as in PlanComputed."""
    structure: str = ""
    """As in PlanComputed."""
    verdict: str = ""
    """What came of trying it, as in PlanTried; "" where it was not tried yet."""

    @property
    def epoch(self) -> Epoch:
        return self.order.epoch

    @property
    def nodes(self) -> list[str]:
        """Those with a program."""
        return [node for _, node in self.order.names]

    def name_of(self, node: str) -> str:
        """What people call a device of it."""
        return next((name for name, known in self.order.names if known == node), node)

    def ready(self, world: LeaderView) -> int:
        """How many of its devices are."""
        holdings = [world.holding(node, self.order.deployment, self.epoch) for node in self.nodes]
        return sum(holding is not None and holding.state == READY for holding in holdings)

    def is_ready(self, world: LeaderView) -> bool:
        return self.ready(world) == len(self.nodes)

    def can_run(self, world: LeaderView) -> bool:
        """Whether all of its devices are in, and none has failed to load it."""

        here = world.nodes

        def fine(node: str) -> bool:
            holding = world.holding(node, self.order.deployment, self.epoch)
            return node in here and (holding is None or holding.state != FAILED)

        return all(map(fine, self.nodes))

    def is_overtaken(self, world: LeaderView) -> bool:
        """Whether a member serves a later epoch, and so will never take this one."""
        return world.served.get(self.order.deployment, NO_EPOCH) > self.epoch

    def loses(self, world: LeaderView) -> bool:
        """Whether one of its devices leaves, or two of them do not reach each other any more."""
        nodes = set(self.nodes)
        return not world.leaving.isdisjoint(nodes) or any(nodes.issuperset(pair) for pair in world.apart)


class Epochs(Iterator[Epoch]):
    """The epochs of one leadership, over all deployments."""

    def __init__(self, term: int) -> None:
        self.last = Epoch(term, 0)
        """The one that was given last."""

    def __next__(self) -> Epoch:
        self.last = Epoch(self.last.term, self.last.number + 1)
        return self.last


def epochs(term: int) -> Epochs:
    """Those of the leadership of that term."""
    return Epochs(term)
