"""The times of the cluster logic, in seconds. Facts."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgepart.agent.cluster.leader.replan_policy import PlanningTiming
from edgepart.agent.cluster.membership.election import ElectionTiming
from edgepart.agent.cluster.membership.failure_detector import DetectorTiming


@dataclass(frozen=True, slots=True)
class CoreTiming:
    """All times of the cluster logic."""

    membership: DetectorTiming = field(default_factory=DetectorTiming)
    election: ElectionTiming = field(default_factory=ElectionTiming)
    planning: PlanningTiming = field(default_factory=PlanningTiming)
    report_s: float = 1.0
    """A member reports to its leader at least this often, changed or not."""
    sync_s: float = 5.0
    """Deployments, cards and standings are sent again this often, in case a message was lost."""
    look_each_s: float = 0.0005
    """After a look at all reports, the leader waits this long for each member before a new report makes it
    look again: many reports come at once, and a look takes longer the more members there are."""
    linger_s: float = 30.0
    """A replaced plan is kept for this long, for the requests that still run on it."""
