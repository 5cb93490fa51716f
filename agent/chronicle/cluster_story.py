"""The cluster's story: turns what the core is told and what it decides into events for people, with their reasons. Rules:
no door; time is an argument.

It is told every event and effect of the core, after the driver has obeyed it, and remembers just what it needs to see what
is new: members, deployments, standings, and the plans that serve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgepart.agent.chronicle import event_log as kinds
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.wire.control import ALIVE, FLAPPING, LEAVING, SUSPECT, Candidacy, Deployment, Standing
from edgepart.agent.wire.inference import Epoch
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner.figures import format_seconds

TOLD = "-"
"""In place of a leader's node id, once it was told who leads."""


@dataclass(frozen=True, slots=True)
class ServingPlanFacts:
    """The facts of a plan that a reader wants to know when it takes over."""

    devices: tuple[str, ...]
    strategy: str
    predicted_latency_s: float
    why: str


FindPlan = Callable[[str, Epoch], ServingPlanFacts | None]
"""Returns the facts of the plan of that deployment and epoch; None if it is not held here."""


class ClusterStory:
    """Writes the story of one agent into its event log."""

    def __init__(self, log: EventLog, find_plan: FindPlan, me: str) -> None:
        """`me` is this device's node id."""
        self._log = log
        self._find_plan = find_plan
        self._me = me
        self._leader = ""
        """A leader who was elected before this agent knew its name."""
        self._members: dict[str, events.Member] = {}
        self._met: set[str] = set()
        """Node ids of all members that were ever seen."""
        self._link_ends: dict[str, str] = {}
        """Why the last link to a node ended, by its id."""
        self._deployments: dict[str, Deployment] = {}
        self._standings: dict[str, str] = {}
        """The last state of each deployment that was told."""
        self._plans: dict[str, ServingPlanFacts] = {}
        self._notes: dict[str, str] = {}
        """The leader's last note on each deployment's plan."""

    def hear(self, thing: events.Event | events.Effect, now_s: float) -> None:
        """Take an event or an effect of the core. `now_s` is in seconds since 1970."""
        match thing:
            case events.LinkDown(node, why):
                self._link_ends[node] = why
            case events.MembersChanged(members):
                self._members_changed(members, now_s)
            case events.LeaderChanged(leader, _):
                self._leader = leader
                self._lead(now_s)
            case events.PersistDeployments(entries):
                for entry in entries:
                    self._deployment(entry, now_s)
            case events.StandingChanged(standing):
                self._standing(standing, now_s)
            case events.SwitchTo(name, epoch):
                self._switched(name, epoch, now_s)
            case events.PlanTried(name, _, verdict, text) if verdict in (events.WRONG, events.SUSPECT):
                what = f"a plan for {name} is not served: its answers are not the model's"
                self._log.tell(now_s, kinds.REFUSED_PLAN, name, what, text)

    def _lead(self, now_s: float) -> None:
        """Tell who leads, once its name is known."""
        if not self._leader:
            self._log.tell(now_s, kinds.LEADER, "", "nobody leads: an election is under way")
        elif self._leader in self._members:
            name = self._members[self._leader].name
            self._log.tell(now_s, kinds.LEADER, name, f"{name} leads the cluster")
            self._leader = TOLD

    # Members

    def _members_changed(self, members: tuple[events.Member, ...], now_s: float) -> None:
        before, self._members = self._members, {member.node: member for member in members}
        for node, member in before.items():
            if node not in self._members:
                self._gone(member, now_s)
        for node, member in self._members.items():
            if node not in before:
                again = node in self._met
                kind = kinds.RETURNED if again else kinds.JOINED
                text = f"{member.name} is back" if again else f"{member.name} is a member"
                text = f"{member.name}, this agent, has started" if node == self._me else text
                self._log.tell(now_s, kind, member.name, text)
            elif before[node].status != member.status:
                self._status(before[node], member, now_s)
        self._met.update(self._members)
        if self._leader in self._members:
            self._lead(now_s)

    def _gone(self, member: events.Member, now_s: float) -> None:
        if member.status == LEAVING:
            self._log.tell(now_s, kinds.LEFT, member.name, f"{member.name} has left", "its agent was stopped")
            return
        why = self._link_ends.pop(member.node, "") or "it was silent for longer than members may be"
        self._log.tell(now_s, kinds.LOST, member.name, f"{member.name} is lost", why)

    def _status(self, before: events.Member, now: events.Member, now_s: float) -> None:
        if now.status == SUSPECT:
            why = self._link_ends.get(now.node, "")
            self._log.tell(now_s, kinds.SUSPECTED, now.name, f"{now.name} cannot be heard", why)
        elif now.status == FLAPPING:
            self._log.tell(now_s, kinds.RETURNED, now.name, f"{now.name} is back, and not used yet", now.note)
        elif now.status == ALIVE and before.status == SUSPECT:
            self._log.tell(now_s, kinds.RETURNED, now.name, f"{now.name} is heard again")

    # Deployments

    def _deployment(self, entry: Deployment, now_s: float) -> None:
        before = self._deployments.get(entry.name)
        if entry.candidacy is not None and (before is None or before.candidacy != entry.candidacy):
            self._share(entry, entry.candidacy, now_s)
        self._deployments[entry.name] = entry
        if before is not None and (before.version, before.fault) == (entry.version, entry.fault):
            return
        if entry.deleted:
            self._plans.pop(entry.name, None)
            self._standings.pop(entry.name, None)
            if before is not None and not before.deleted:
                self._log.tell(now_s, kinds.UNDEPLOYED, entry.name, f"{entry.name} was undeployed")
        elif entry.fault:
            text = f"{entry.name} is set aside on all devices"
            self._log.tell(now_s, kinds.SET_ASIDE, entry.name, text, f"its model {entry.fault}")
        else:
            what = "was deployed" if before is None or before.deleted else "was deployed again"
            self._log.tell(now_s, kinds.DEPLOYED, entry.name, f"{entry.name} {what}")

    def _share(self, entry: Deployment, candidacy: Candidacy, now_s: float) -> None:
        gets = TrialShare(candidacy.share, candidacy.shadow)
        text = f"version {entry.number}, the candidate of {candidacy.parent}, is to get {gets}"
        self._log.tell(now_s, kinds.CANDIDATE, candidacy.parent, text)

    def _standing(self, standing: Standing, now_s: float) -> None:
        name = standing.deployment
        if is_variant(name):
            return
        self._notes[name] = standing.note
        if self._standings.get(name) == standing.state:
            return
        self._standings[name] = standing.state
        if standing.state == "failed":
            why = standing.error or standing.text
            self._log.tell(now_s, kinds.FAILED, name, f"there is no plan for {name}", why)
        elif standing.state != "serving":  # A plan that serves is told of when this agent switches to it.
            self._log.tell(now_s, kinds.STANDING, name, f"{name}: {standing.text}")

    # Plans

    def _switched(self, name: str, epoch: Epoch, now_s: float) -> None:
        found = None if is_variant(name) else self._find_plan(name, epoch)
        if found is None:
            return
        before, self._plans[name] = self._plans.get(name), found
        here = {member.name for member in self._members.values()}
        on = ", ".join(found.devices) or "the gateways alone"
        text = f"{name} is served by {on}, predicted {format_seconds(found.predicted_latency_s)}"
        why = explain_change(before, found, here, self._notes.get(name, ""))
        self._log.tell(now_s, kinds.PLAN, name, text, why)


def explain_change(
    before: ServingPlanFacts | None, now: ServingPlanFacts, here: set[str], note: str = ""
) -> str:
    """Why a plan replaces another one, as far as the two and the members that are here tell. `note` is the leader's.

    >>> old = ServingPlanFacts(("a", "b"), "auto", 0.2, "")
    >>> explain_change(old, ServingPlanFacts(("a",), "single", 0.3, ""), {"a"})
    'b is not here any more'
    >>> explain_change(old, ServingPlanFacts(("a", "b"), "auto", 0.1, ""), {"a", "b"})
    'it is faster: predicted 100 ms in place of 200 ms'
    """
    if before is None:
        return now.why.partition("\n")[0]
    if gone := [name for name in before.devices if name not in here]:
        return f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} not here any more"
    if note:
        return note
    if more := [name for name in now.devices if name not in before.devices]:
        return f"{', '.join(more)} can be used, too"
    was_s, is_s = before.predicted_latency_s, now.predicted_latency_s
    if is_s < was_s:
        return f"it is faster: predicted {format_seconds(is_s)} in place of {format_seconds(was_s)}"
    return now.why.partition("\n")[0]
