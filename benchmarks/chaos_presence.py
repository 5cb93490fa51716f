"""Which boxes can reach each other while boxes die, freeze and are cut off, and so which listed members are ghosts.

A ghost is a member that an agent lists although it has been absent for the agent for longer than the bound:
its process was dead or frozen, or no path led to it. A box is present for an agent if one of them hears the
other, directly or through others. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from benchmarks import chaos_schedule as schedule

BOUND_S = 5.0
"""Seconds after which a silent box has to be off the list: the target for a box that vanished."""
LISTED = ("alive", "suspect", "leaving")


@dataclass(frozen=True, slots=True)
class Done:
    """An act as it was done."""

    at: float
    """Time on the machine's monotonic clock."""
    verb: str
    box: str
    other: str = ""
    took_s: float = 0.0
    incident: int = 0
    """Number of the incident in the schedule."""


@dataclass(frozen=True)
class Presence:
    """The boxes that run and the paths that are cut, at one moment."""

    up: frozenset[str]
    frozen: frozenset[str] = frozenset()
    cut: frozenset[tuple[str, str]] = frozenset()
    """Pairs of a sender and a receiver."""

    def after(self, done: Done, everybody: Iterable[str]) -> Presence:
        """Return the presence after an act. `everybody` holds all stations that a box may be cut off from."""
        box, others = done.box, {one for one in everybody if one != done.box}
        out, into = {(box, other) for other in others}, {(other, box) for other in others}
        match done.verb:
            case schedule.KILL:
                return replace(self, up=self.up - {box}, frozen=self.frozen - {box})
            case schedule.START | schedule.JOIN:
                return replace(self, up=self.up | {box})
            case schedule.FREEZE:
                return replace(self, frozen=self.frozen | {box})
            case schedule.THAW:
                return replace(self, frozen=self.frozen - {box})
            case schedule.CUT:
                return replace(self, cut=self.cut | out | into)
            case schedule.CUT_FROM:
                return replace(self, cut=self.cut | out)
            case schedule.CUT_TO:
                return replace(self, cut=self.cut | into)
            case schedule.CUT_PAIR:
                return replace(self, cut=self.cut | {(box, done.other), (done.other, box)})
            case schedule.HEAL:
                gone = {(box, done.other), (done.other, box)} if done.other else out | into
                return replace(self, cut=self.cut - gone)
        return self

    @property
    def awake(self) -> frozenset[str]:
        return self.up - self.frozen

    def company(self, box: str, *, whole: bool = False) -> frozenset[str]:
        """Return the boxes that are present for `box`, itself included; none if it does not run.

        `whole` counts only paths that carry both ways.
        """
        if box not in self.awake:
            return frozenset()
        found, new = {box}, {box}
        while new:
            new = {
                other for other in self.awake - found if any(self._joined(one, other, whole) for one in new)
            }
            found |= new
        return frozenset(found)

    def _joined(self, one: str, other: str, whole: bool) -> bool:
        broken = ((one, other) in self.cut) + ((other, one) in self.cut)
        return broken == 0 if whole else broken < 2


@dataclass(frozen=True, slots=True)
class Look:
    """The members that an agent listed at one time."""

    at: float
    """When the agent was asked."""
    viewer: str
    listed: frozenset[str]
    """Names of the members that the agent takes to be in, its own included."""


@dataclass
class _Absences:
    """For each pair of a viewer and a box, the time since which the box has been absent for the viewer."""

    since: dict[tuple[str, str], float] = field(default_factory=dict)

    def note(self, presence: Presence, boxes: Iterable[str], at: float) -> None:
        here = list(boxes)
        company = {box: presence.company(box) for box in here}
        for viewer in here:
            for box in here:
                if viewer == box or not company[viewer] or box in company[viewer]:
                    self.since.pop((viewer, box), None)  # a viewer that is frozen cannot notice anything
                else:
                    self.since.setdefault((viewer, box), at)


def ghosts(
    first: Presence,
    done: Sequence[Done],
    looks: Sequence[Look],
    stations: Sequence[str],
    bound_s: float = BOUND_S,
) -> Iterator[tuple[Look, str, float]]:
    """Yield each look that listed a ghost, the ghost's name, and how long it had been absent.

    `stations` holds all boxes there ever were, and whatever else can be cut off from them.
    """
    absences, presence, acts = _Absences(), first, sorted(done, key=lambda one: one.at)
    absences.note(presence, stations, -1e18)
    for look in sorted(looks, key=lambda one: one.at):
        while acts and acts[0].at <= look.at:
            act = acts.pop(0)
            presence = presence.after(act, stations)
            absences.note(presence, stations, act.at)
        for box in sorted(look.listed):
            since = absences.since.get((look.viewer, box))
            if since is not None and look.at - since > bound_s:
                yield look, box, look.at - since


def broken_rules(incidents: Sequence[schedule.Incident], boxes: Sequence[str], client: str) -> Iterator[str]:
    """Yield the points where a schedule exceeds what a cluster has to survive. Any box that is up may be the
    leader."""
    ended = 0.0
    for number, incident in enumerate(incidents):
        if incident.at_s < ended:
            yield f"incident {number} ({incident.kind}) begins before the last one is over"
        ended = incident.at_s + incident.lasts_s
        joins = [act.box for act in incident.acts if act.verb == schedule.JOIN]
        for leader in boxes:
            yield from (
                f"incident {number} ({incident.kind}): {text}"
                for text in _within(incident, boxes, client, leader)
            )
        boxes = (*boxes, *joins)


def _within(incident: schedule.Incident, boxes: Sequence[str], client: str, leader: str) -> Iterator[str]:
    first = presence = Presence(frozenset({*boxes, client}))
    full: set[str] = set()
    for act in sorted(incident.acts, key=lambda one: one.after_s):
        box = leader if act.box == schedule.LEADER else act.box
        presence = presence.after(Done(act.after_s, act.verb, box, act.other), (*boxes, client))
        full = (
            full | {box}
            if act.verb == schedule.FILL
            else full - {box}
            if act.verb == schedule.EMPTY
            else full
        )
        if incident.kind != "power cut of all" and not _survivable(presence, client):
            yield f"after {act.after_s:.1f} s fewer than two whole boxes are within the client's reach"
    added = {act.box for act in incident.acts if act.verb == schedule.JOIN}
    if replace(presence, up=presence.up - added) != first or full:
        yield "it leaves something broken behind"


def _survivable(presence: Presence, client: str) -> bool:
    """Whether two boxes hear each other and the client, both ways."""
    whole = [box for box in presence.awake if box != client and presence._joined(box, client, True)]
    return any(presence._joined(one, other, True) for one, other in combinations(whole, 2))
