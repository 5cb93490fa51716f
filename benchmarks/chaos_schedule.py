"""Faults of a cluster and their times: a schedule that depends on nothing but a seed. Does no I/O.

An incident is one kind of trouble and its mending. Incidents follow each other and do not overlap. In each of
them the cluster can keep its promise that nothing is lost: except in a power cut, at any time at least two
boxes are up, whole, and in reach of each other and of the client. Each incident is undone before the next
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

KILL, START, FREEZE, THAW, CUT, CUT_FROM, CUT_TO, CUT_PAIR, HEAL, FILL, EMPTY, JOIN = (
    *(
        "kill",
        "start",
        "freeze",
        "thaw",
        "cut",
        "cut from",
        "cut to",
        "cut pair",
        "heal",
        "fill",
        "empty",
        "join",
    ),
)
MENDS = frozenset({START, THAW, HEAL, EMPTY})
LEADER = "@leader"
"""Stands for the box that leads when the act is done; it is the same box for the rest of the incident."""

FIRST_S = 8.0
"""Seconds of calm in which requests run before the first incident."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that is done to a box."""

    after_s: float
    """Seconds since its incident began."""
    verb: str
    box: str
    other: str = ""
    """The other end of a link."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Trouble of one kind: its acts, and the time that it takes."""

    kind: str
    at_s: float
    """Seconds since the schedule began."""
    acts: tuple[Act, ...]
    lasts_s: float
    """Seconds until the next incident may begin: the time to mend this one, and to settle."""
    counts: int = 0
    """Number of the act from which the time to the next answer is measured."""


Draw = Callable[[Random, Sequence[str]], Incident]
"""Draws an incident that begins at 0. Boxes are named in the order in which they were made, the founder first."""


def _killed(rng: Random, boxes: Sequence[str]) -> Incident:
    box, back_s = rng.choice(boxes), rng.uniform(4, 8)
    return Incident("kill", 0, (Act(0, KILL, box), Act(back_s, START, box)), back_s + 12)


def _leader_killed(rng: Random, boxes: Sequence[str]) -> Incident:
    back_s = rng.uniform(4, 8)
    acts = (Act(0, KILL, LEADER), Act(back_s, START, LEADER))
    return Incident("leader killed", 0, acts, back_s + 12)


def _leader_killed_in_a_replan(rng: Random, boxes: Sequence[str]) -> Incident:
    """Kill another box first, so that the leader is interrupted while it replans."""
    box, later_s, back_s = rng.choice(boxes), rng.uniform(0.02, 0.6), rng.uniform(5, 8)
    acts = (
        Act(0, KILL, box),
        Act(later_s, KILL, LEADER),
        Act(back_s, START, box),
        Act(back_s + 1, START, LEADER),
    )
    return Incident("leader killed in a replan", 0, acts, back_s + 15, counts=1)


def _frozen(rng: Random, boxes: Sequence[str]) -> Incident:
    box, for_s = rng.choice(boxes), rng.uniform(5, 20)
    return Incident("freeze", 0, (Act(0, FREEZE, box), Act(for_s, THAW, box)), for_s + 10)


def _stalled(rng: Random, boxes: Sequence[str]) -> Incident:
    """Freeze a box as briefly as swapping or a move by its hypervisor would."""
    box, for_s = rng.choice(boxes), rng.uniform(1, 2.5)
    return Incident("short freeze", 0, (Act(0, FREEZE, box), Act(for_s, THAW, box)), for_s + 8)


def _cut_off(rng: Random, boxes: Sequence[str]) -> Incident:
    """Cut a box off as if its cable were pulled: no peer is notified."""
    box, for_s = rng.choice(boxes), rng.uniform(6, 12)
    return Incident("cut off", 0, (Act(0, CUT, box), Act(for_s, HEAL, box)), for_s + 10)


def _one_way(rng: Random, boxes: Sequence[str]) -> Incident:
    box, for_s, verb = rng.choice(boxes), rng.uniform(6, 12), rng.choice((CUT_FROM, CUT_TO))
    kind = "cut one way, nothing from it" if verb == CUT_FROM else "cut one way, nothing to it"
    return Incident(kind, 0, (Act(0, verb, box), Act(for_s, HEAL, box)), for_s + 10)


def _link_cut(rng: Random, boxes: Sequence[str]) -> Incident:
    """Cut the link between two boxes; all others see both."""
    (one, other), for_s = rng.sample(boxes, 2), rng.uniform(6, 12)
    acts = (Act(0, CUT_PAIR, one, other), Act(for_s, HEAL, one, other))
    return Incident("link cut", 0, acts, for_s + 10)


def _joined(rng: Random, boxes: Sequence[str]) -> Incident:
    number = max(int(box.rpartition("-")[2]) for box in boxes) + 1
    return Incident("join", 0, (Act(0, JOIN, f"box-{number}"),), 25)


def _power_cut(rng: Random, boxes: Sequence[str]) -> Incident:
    for_s = rng.uniform(1, 3)
    acts = (*(Act(0, KILL, box) for box in boxes), *(Act(for_s, START, box) for box in boxes))
    return Incident("power cut of all", 0, acts, for_s + 30)


def _disk_full(rng: Random, boxes: Sequence[str]) -> Incident:
    """Kill another box while a disk is full, so that plans are made and loaded meanwhile."""
    (full, lost), back_s = rng.sample(boxes, 2), rng.uniform(6, 9)
    acts = (Act(0, FILL, full), Act(2, KILL, lost), Act(back_s, START, lost), Act(back_s + 6, EMPTY, full))
    return Incident("disk full, another killed", 0, acts, back_s + 16, counts=1)


KINDS: dict[str, Draw] = {
    "kill": _killed,
    "leader": _leader_killed,
    "replan": _leader_killed_in_a_replan,
    "freeze": _frozen,
    "stall": _stalled,
    "cut": _cut_off,
    "one-way": _one_way,
    "link": _link_cut,
    "disk": _disk_full,
    "join": _joined,
    "power": _power_cut,
}
"""Maps the word of the --kinds option to the function that draws an incident."""
ONCE = ("join", "power")
"""Kinds that occur at most once: a box that joined stays, and all hosts share one machine; a power cut takes long."""


def schedule(
    seed: int,
    seconds: float,
    boxes: Sequence[str],
    kinds: Sequence[str] = tuple(KINDS),
    calm_s: float = 0.0,
) -> tuple[Incident, ...]:
    """Return the incidents that fit into `seconds`: each kind once in an order drawn from the seed, then any
    but those in `ONCE`.

    The schedule ends at the first incident that does not fit. `calm_s` is the time before each incident in
    which the cluster can prepare for it.
    """
    rng, here, at_s = Random(seed), list(boxes), FIRST_S + calm_s
    found: list[Incident] = []
    for kind in _order(rng, kinds):
        incident = replace(KINDS[kind](rng, here), at_s=at_s)
        if at_s + incident.lasts_s > seconds:
            break
        found.append(incident)
        at_s += incident.lasts_s + calm_s
        here += [act.box for act in incident.acts if act.verb == JOIN]
    return tuple(found)


def _order(rng: Random, kinds: Sequence[str]) -> Iterator[str]:
    yield from rng.sample(list(kinds), len(kinds))
    again = [kind for kind in kinds if kind not in ONCE]
    while again:
        yield from rng.sample(again, len(again))
