"""Diagnosis: decides whether a box is a member, why it is not, and what the user can do about it. Rules over the record in
sightings.py, membership and plans; no door, time is an argument (seconds since 1970).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edgepart.agent.doctor.remedies import FAULT_ORDER, NO_CONNECTION, REMEDIES
from edgepart.agent.measure.starvation import describe_starvation
from edgepart.agent.net.faults import Fault
from edgepart.agent.net.sightings import BROKER, MDNS, SAVED, Box, Try
from edgepart.agent.wire import control
from edgepart.agent.wire.control import DEAD, LEAVING, LEFT, SUSPECT, Starved
from edgepart.planner.figures import format_bytes
from edgepart.planner.report.sentences import headline

RECENT_S = 60.0
"""Seconds for which tries and announcements count as recent."""
GRACE_S = 3.0
"""Seconds after the end of a link in which a new one is expected."""
SMALL_BYTES = 16 << 20
"""A device on which plans may take less memory than this is left out of most plans."""

MEMBER, OTHER_CLUSTER, OUT, GONE, NEW = "member", "other cluster", "out", "gone", "new"
"""States of a box in addition to those of membership. OUT: the box was seen but is not a member. GONE: it was not heard of
lately. NEW: it was heard of, or reached, just now, and is expected to become a member."""


LESS_LOAD = "see what else runs there: `top`. Plans are made for the load only once it has lasted for minutes"
"""Advice about a device that is starved."""


@dataclass(frozen=True, slots=True)
class OwnAgent:
    """The agent that makes the diagnosis."""

    node: str
    name: str
    fingerprint: str
    version: str
    port: int
    """The port to which members connect."""
    running: bool = True
    """Whether an agent runs here; False for a survey without one."""
    through_broker: bool = False
    """Whether members reach each other only through a broker."""


@dataclass(frozen=True, slots=True)
class MembershipEntry:
    """The data that membership has about a box."""

    status: str
    """One of control.STATUSES, LEAVING, or another status that membership gives."""
    for_s: float
    """Seconds since the status changed."""
    name: str = ""
    measured: bool = False
    memory_bytes: float | None = None
    """The memory that plans may take on the box; None if it was not measured."""
    starved: Starved = field(default_factory=Starved)
    """Whether the device is starved of the CPU."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The diagnosis of one box."""

    state: str
    why: str = ""
    do: str = ""
    """The remedy for the user; "" if all is well, or nothing can be done."""


@dataclass(frozen=True, slots=True)
class ServedDeployment:
    """A deployment, and where its plan runs."""

    name: str
    devices: tuple[str, ...]
    """Names of the devices that the plan uses; empty if there is no plan yet."""
    allowed: tuple[str, ...]
    """Names of the devices to which the user restricted the deployment; empty means all devices."""
    why: str
    """The reason why the plan was chosen or, without a plan, why there is none."""


def diagnose(box: Box, seat: MembershipEntry | None, me: OwnAgent, now: float) -> Verdict:
    """Return the diagnosis of a box; `seat` is None if membership does not know the box."""
    if seat is not None and seat.status not in ("", DEAD, LEFT):
        return _judge_seated(seat)
    if box.fingerprint and box.fingerprint != me.fingerprint[:16]:
        return _foreign(box.fingerprint, me)
    if seat is not None and seat.status == LEFT and not _heard(box, now, 0.0, since=now - seat.for_s):
        return Verdict(
            LEFT, f"it left on purpose {describe_age(seat.for_s)}", "start its agent when it is to be back"
        )
    return _outside(box, me, now)


def _judge_seated(seat: MembershipEntry) -> Verdict:
    match seat.status:
        case control.ALIVE if not seat.measured:
            return Verdict(MEMBER, "it is being measured, and gets no work before that is done")
        case control.ALIVE if seat.memory_bytes is not None and seat.memory_bytes < SMALL_BYTES:
            room = f"plans may take only {format_bytes(seat.memory_bytes)} there"
            return Verdict(MEMBER, room, "raise its --memory-limit, or free memory on it")
        case control.ALIVE if seat.starved.share:
            return Verdict(MEMBER, describe_starvation(seat.starved), LESS_LOAD)
        case control.ALIVE:
            return Verdict(MEMBER)
        case control.LEAVING:
            return Verdict(LEAVING, "it is stopping, and serves until others have taken over")
        case control.SUSPECT:
            silent = f"its link broke or fell silent {describe_age(seat.for_s)}; others are asked whether they reach it"
            why = "; ".join(filter(None, (silent, describe_starvation(seat.starved))))
            return Verdict(SUSPECT, why)
    return Verdict(seat.status, f"{seat.status} since {describe_age(seat.for_s)}")


_ANSWERS = Verdict(
    OUT, "it answers, as a member of this cluster", "start this device's agent: `edgepart agent`"
)


def _foreign(fingerprint: str, me: OwnAgent) -> Verdict:
    if not me.fingerprint:
        why = f"it is in cluster {fingerprint}; this device is in none (it has no certificate)"
        do = "run `edgepart token create` on that cluster's first device, and `edgepart join TOKEN` here"
        return Verdict(OTHER_CLUSTER, why, do)
    return Verdict(
        OTHER_CLUSTER,
        f"it is in cluster {fingerprint}, this device in {me.fingerprint[:16]}",
        "nothing, if that is meant. To move it here, stop its agent, delete identity/ in its state folder, "
        "and run `edgepart join` with a token of this cluster",
    )


def _outside(box: Box, me: OwnAgent, now: float) -> Verdict:
    announced = _heard(box, now, RECENT_S)
    tries = _select_recent(box.tries)
    if not tries:
        return _judge_untried(box, me, now, announced)
    # Of several addresses with the same fault, take the one that was tried first: it is the likeliest.
    worst = min(reversed(tries), key=lambda one: FAULT_ORDER.index(one.fault))
    if worst.fault is None:
        return _judge_departed(box, now) if me.running else _ANSWERS
    why, do = REMEDIES[worst.fault]
    fill = {
        "address": worst.address,
        "text": worst.text,
        "port": me.port,
        "its_port": _port(worst.address),
        "here": me.version.partition("+")[0],
        "there": box.version.partition("+")[0] or "another version",
    }
    if worst.fault in NO_CONNECTION:
        return _judge_unconnected(box, worst.fault, announced, fill, now)
    return Verdict(OUT, why.format(**fill), do.format(**fill))


def _judge_untried(box: Box, me: OwnAgent, now: float, announced: float | None) -> Verdict:
    by_broker = [address.startswith("mqtt:") for address in box.addresses]
    if by_broker and not any(one is me.through_broker for one in by_broker):
        here, there = ("mqtt", "tcp") if me.through_broker else ("tcp", "mqtt")
        why = f"members reach it by --transport {there}, and this agent by {here}"
        return Verdict(OUT, why, "give all members the same --transport")
    if announced is None:
        return Verdict(GONE, _last_heard(box, now), "start its agent, if it is to be in")
    return Verdict(NEW, "it was heard of just now, and is being called")


def _judge_departed(box: Box, now: float) -> Verdict:
    if box.ended is None or now - box.ended[1] < GRACE_S:
        return Verdict(NEW, "a link to it is being made")
    why, at = box.ended
    return Verdict(
        OUT,
        f"links to it come up and end, last {describe_age(now - at)}: {why}",
        "look at its log; if its version differs, upgrade the older one",
    )


def _judge_unconnected(
    box: Box, fault: Fault, announced: float | None, fill: Mapping[str, object], now: float
) -> Verdict:
    why, do = (text.format(**fill) for text in REMEDIES[fault])
    called_at = box.called[1] if box.called is not None else 0.0
    if now - called_at < RECENT_S and (box.ended is None or box.ended[1] < called_at):
        one_way = f"it reaches this device, but not the other way: {why}"
        return Verdict(OUT, one_way, do)
    if announced is None:
        start = "start it, or its agent; where it is on, look for a firewall or another network between"
        return Verdict(GONE, f"{_last_heard(box, now)}; {why}", start)
    seen = f"it is announced ({_ways(box, now)}), but cannot be connected to: {why}"
    return Verdict(OUT, seen, do)


def find_unused(
    name: str, seat: MembershipEntry, served: Iterable[ServedDeployment]
) -> list[tuple[str, str]]:
    """Return the deployments whose plans do not use the member of that name, each with the reason."""
    found = []
    for one in served:
        if name in one.devices:
            continue
        if one.allowed and name not in one.allowed:
            why = f"it was deployed for {', '.join(one.allowed)} only (--devices)"
        elif not seat.measured:
            why = "it is not measured yet"
        elif not one.devices:
            why = f"there is no plan: {one.why}"
        else:
            why = f"it would not be faster with it. {headline(one.why)}"
        found.append((one.name, why))
    return found


def find_shared_names(named: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the nodes that share a name, for each such name, from (node, name) pairs.

    >>> find_shared_names([("1", "pi"), ("2", "nas"), ("3", "pi")])
    {'pi': ('1', '3')}
    """
    pairs = sorted(set(named))
    several = {name for name, count in Counter(name for _, name in pairs).items() if name and count > 1}
    return {name: tuple(node for node, other in pairs if other == name) for name in sorted(several)}


def name_clash_notes(named: Iterable[tuple[str, str]]) -> list[str]:
    """Return a note for each name that several boxes share, from (node, name) pairs."""
    return [
        f"{len(nodes)} boxes are called {name!r}: they are told apart by their ids ({', '.join(nodes)}); "
        "`edgepart agent --name` gives one another name"
        for name, nodes in find_shared_names(named).items()
    ]


def describe_age(seconds: float) -> str:
    """Return, in words, how long ago something happened.

    >>> describe_age(0.2), describe_age(75), describe_age(7200), describe_age(200000)
    ('just now', '75 s ago', '2 h ago', '2 days ago')
    """
    if seconds < 2:
        return "just now"
    for unit, size, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48), ("days", 86400, 1e9)):
        if seconds / size < most:
            return f"{seconds / size:.0f} {unit} ago"
    return "long ago"


def _heard(box: Box, now: float, within_s: float, since: float | None = None) -> float | None:
    """Return the time at which the box last announced itself; None if that was not within `within_s` seconds or, if
    given, not after `since`."""
    times = [at for way, at in box.heard if way in (MDNS, BROKER)]
    start = now - within_s if since is None else since
    return max((at for at in times if at > start), default=None)


def _last_heard(box: Box, now: float) -> str:
    if box.member_at is not None:
        return f"it was a member until {describe_age(now - box.member_at)}"
    times = [at for way, at in box.heard if way in (MDNS, BROKER)]
    if times:
        return f"it was announced last {describe_age(now - max(times))}"
    if any(way == SAVED for way, _ in box.heard):
        return "it was a member before this agent was started"
    return "it never announced itself"


def _ways(box: Box, now: float) -> str:
    newest = sorted(((at, way) for way, at in box.heard if way in (MDNS, BROKER)), reverse=True)
    return ", ".join(f"{way} {describe_age(now - at)}" for at, way in newest)


def _select_recent(tries: Sequence[Try]) -> list[Try]:
    """Return the tries of about the same time as the newest one: an address that a box had yesterday says nothing about
    today."""
    newest = max((one.at for one in tries), default=0.0)
    return [one for one in tries if newest - one.at < RECENT_S]


def _port(address: str) -> str:
    return address.rpartition(":")[2]
