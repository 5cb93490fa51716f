"""Leadership: what a device needs to lead. It keeps the members' reports, and has the controller look at them when
there is news. Rules, without I/O; the core asks.

Every device keeps this, and uses it only while it leads. Many reports come at once, and a look takes longer the more
members there are, so a look waits for some of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from edgepart.agent.cluster.core.core_timing import CoreTiming
from edgepart.agent.cluster.core.follower import Follower
from edgepart.agent.cluster.leader.controller import Controller
from edgepart.agent.cluster.state.events import Effect, PlanComputed, PlanFailed, PlanTried, RoundingMeasured
from edgepart.agent.wire.bounds import LARGEST
from edgepart.agent.wire.control import Latency, Report, Want
from edgepart.agent.wire.inference import Epoch


class Leadership:
    """One device's part as the leader."""

    def __init__(self, follower: Follower, timing: CoreTiming, now: float) -> None:
        """`follower` is this device's own, whose plans go on."""
        self.controller: Controller | None = None
        """The decisions of this device's leadership; None while it does not lead."""
        self.reports: dict[str, Report] = {}
        """The last report of each member's present process, by node."""
        self.stale = True
        """Whether there is news that the controller should look at."""
        self._follower = follower
        self.timing = timing
        self._look_at = now
        """The controller looks at the cluster at this time, whether or not there is news."""
        self._looked_at = -math.inf

    @property
    def leads(self) -> bool:
        """Whether this device leads."""
        return self.controller is not None

    def begin(self, term: int) -> None:
        """Begin to lead, in this term."""
        own, self.stale = self._follower, True
        timing = self.timing.planning
        self.controller = Controller(term, own.active, timing, own.variants, own.spares, own.kept.get)

    def end(self) -> None:
        """Lead no more: another device does, or none."""
        self.controller, self.stale = None, True

    # Reports

    def take_report(self, node: str, report: Report, seen_term: int) -> bool:
        """Take a member's report, as far as it is believed; return whether that is news. `seen_term` is the largest
        term that is known here."""
        believed = self._drop_forged_plans(report, seen_term)
        if self.reports.get(node) == believed:
            return False
        self.reports[node] = believed
        return True

    def take_own_report(self, node: str, report: Report) -> None:
        """Take this device's own report, which needs no message and no doubt."""
        self.stale |= self.reports.get(node) != report
        self.reports[node] = report

    def _drop_forged_plans(self, report: Report, seen_term: int) -> Report:
        """The report without plans that nobody can have given to its sender: plans of a term that is not
        known here, although a member that holds such a plan has told of its term before, and plans of this
        leadership that it has not made."""
        last = Epoch(seen_term, LARGEST)
        if self.controller is not None and self.controller.term == last.term:
            last = self.controller.last_epoch
        if all(holding.epoch <= last for holding in report.holdings):
            return report
        return replace(report, holdings=tuple(h for h in report.holdings if h.epoch <= last))

    # What gateways and this device itself tell the leader

    def hear(self, node: str, message: Latency | Want, now: float) -> Sequence[Effect]:
        """Take what a gateway tells the leader."""
        if self.controller is None:
            return []
        if isinstance(message, Latency):
            self.stale |= self.controller.note_latency(message, node)
            return []
        self.stale = True
        return self.controller.wish(node, message, now)

    def take_result(
        self,
        event: PlanComputed | PlanFailed | PlanTried | RoundingMeasured,
        nodes: Iterable[str],
        now: float,
    ) -> Sequence[Effect]:
        """Take what this device has found out for the controller. `nodes` are all members."""
        if self.controller is None:
            return []
        self.stale = True
        match event:
            case RoundingMeasured():
                self.controller.rounded(event)
            case PlanTried():
                return self.controller.take_verdict(event, nodes)
            case PlanComputed() | PlanFailed():
                self.controller.answered(event, now)
        return []

    def retell(self, nodes: Iterable[str]) -> Sequence[Effect]:
        """Tell how all deployments stand, to members that may not know."""
        return self.controller.retell(nodes) if self.controller is not None else []

    def count_refused(self) -> Mapping[str, int]:
        """The number of plans that were tried and given up, by deployment."""
        return self.controller.count_refused() if self.controller is not None else {}

    # When to look

    def look_soon(self, members: int, now: float) -> None:
        """Have the controller look at all reports: at once if its last look is long enough ago, else later. `members`
        is their number."""
        at = self._looked_at + self.timing.look_each_s * members
        self.stale |= now >= at
        self._look_at = min(self._look_at, at)

    def begin_look(self, now: float) -> Controller | None:
        """The controller if it has to look at the cluster now; None if not. What is news until now is none any
        more."""
        if self.controller is None or not (self.stale or now >= self._look_at):
            return None
        self.stale, self._looked_at = False, now
        return self.controller

    def end_look(self, now: float) -> None:
        """Set the time of the next look, if there is no news before."""
        self._look_at = self.controller.wake_at(now) if self.controller is not None else now

    def wake_at(self) -> float:
        """The time of the next look; inf while this device does not lead."""
        return self._look_at if self.controller is not None else math.inf
