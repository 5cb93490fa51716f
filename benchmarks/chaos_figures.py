"""Effects of a schedule on requests and members: figures by incident and by kind, and a table. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any

from benchmarks.chaos_asking import Asked
from benchmarks.chaos_presence import Done
from benchmarks.chaos_schedule import MENDS, Incident

STALL_S = 1.0
"""An incident during which the machine stood still for at least this time is left out of all medians."""


@dataclass(frozen=True, slots=True)
class Row:
    """The effect of one incident on requests. Times are in seconds since the act from which its kind counts."""

    kind: str
    boxes: tuple[str, ...]
    silence_s: float
    """The longest time without any answer that began before the trouble was mended. It begins at the act, or
    at the last answer that still arrived after it, and ends at the next answer."""
    replanned_s: float | None
    """Time to the first answer by a plan that had answered nothing before; None if there was none before the
    next incident."""
    slowest_s: float
    """The longest time of any request that was in flight at the act or began before the next incident."""
    requests: int
    """Requests in flight at the act or begun before the next incident."""
    replays: int
    retries: int
    lost: int
    wrong: int
    stall_s: float = 0.0
    """The longest time that the machine itself stood still meanwhile. If it is long, the times say nothing
    about the cluster."""

    @property
    def counts(self) -> bool:
        return self.stall_s < STALL_S


@dataclass(frozen=True)
class Outcome:
    """The outcome of a whole run."""

    sent: int
    answered: int
    lost: int
    wrong: int
    ghosts: tuple[str, ...]
    """One sentence each: which agent listed which box, and how long that box had been absent."""
    troubles: tuple[str, ...]
    """One sentence for each other fault."""
    longest_gap_s: float
    """Longest time between two successive answers in the whole run."""
    calm_s: float
    """Median latency before the first incident."""
    errors: tuple[str, ...]
    """Errors of lost requests."""
    rows: tuple[Row, ...]
    stood_still_s: float = 0.0
    """The longest time that the machine itself kept a process waiting. If it is long, the run's figures say
    little."""

    @property
    def fine(self) -> bool:
        return not (self.lost or self.wrong or self.ghosts or self.troubles) and self.answered > 0

    def document(self) -> dict[str, Any]:
        found = asdict(self) | {"fine": self.fine}
        for row in found["rows"]:
            row["silence_s"] = None if row["silence_s"] == inf else row["silence_s"]  # JSON knows no infinity
        return found


def outcome(
    asked: Sequence[Asked],
    incidents: Sequence[Incident],
    done: Sequence[Done],
    ghosts: Sequence[str],
    troubles: Sequence[str],
    stalls: Sequence[tuple[float, float]] = (),
) -> Outcome:
    """Return the outcome of a run.

    `done` lists the acts of `incidents` as they were done, in order. `stalls` lists when each standstill of
    the machine ended, and how long it took.
    """
    good = [one for one in asked if not one.error]
    ended = sorted(one.ended for one in good)
    first = min((one.at for one in done), default=inf)
    calm = [one.ended - one.began for one in good if one.ended <= first]
    return Outcome(
        sent=len(asked),
        answered=len(good),
        lost=len(asked) - len(good),
        wrong=sum(one.wrong for one in good),
        ghosts=tuple(ghosts),
        troubles=tuple(troubles),
        longest_gap_s=max((after - before for before, after in pairwise(ended)), default=0.0),
        calm_s=median(calm) if calm else 0.0,
        errors=tuple(sorted({one.error for one in asked if one.error})),
        rows=tuple(rows(asked, incidents, done, stalls)),
        stood_still_s=max((seconds for _, seconds in stalls), default=0.0),
    )


def rows(
    asked: Sequence[Asked],
    incidents: Sequence[Incident],
    done: Sequence[Done],
    stalls: Sequence[tuple[float, float]] = (),
) -> Iterator[Row]:
    """Yield a row for each incident that took place."""
    began = [
        min(one.at for one in done if one.incident == number)
        for number in sorted({one.incident for one in done})
    ]
    for number, until in zip(sorted({one.incident for one in done}), [*began[1:], inf], strict=True):
        acts = sorted((one for one in done if one.incident == number), key=lambda one: one.at)
        here = [seconds for at, seconds in stalls if acts[0].at < at < until + seconds]
        yield replace(_row(asked, incidents[number], acts, until), stall_s=max(here, default=0.0))


def _row(asked: Sequence[Asked], incident: Incident, acts: Sequence[Done], until: float) -> Row:
    at = acts[min(incident.counts, len(acts) - 1)].at
    mended = min((one.at for one in acts if one.verb in MENDS), default=until)
    known = {one.epoch for one in asked if not one.error and one.ended <= at}
    mine = [one for one in asked if one.ended > at and one.began < until]
    good = sorted((one for one in mine if not one.error), key=lambda one: one.ended)
    new = [one.ended - at for one in good if one.epoch not in known and one.ended < until]
    harmed = {one.box for one in acts if one.verb not in MENDS}
    return Row(
        kind=incident.kind,
        boxes=tuple(sorted(harmed)),
        silence_s=silence_s([one.ended for one in good], at, min(mended, until)),
        replanned_s=min(new, default=None),
        slowest_s=max((one.ended - one.began for one in mine), default=0.0),
        requests=len(mine),
        replays=sum(one.replays for one in mine),
        retries=sum(one.retries for one in mine),
        lost=sum(bool(one.error) for one in mine),
        wrong=sum(one.wrong for one in mine),
    )


def silence_s(answers: Sequence[float], at: float, mended: float) -> float:
    """Return the longest of the gaps that begin from `at` until `mended`; `answers` are sorted times, all after `at`.

    >>> silence_s([1.1, 1.2, 4.0, 4.1, 9.0], 1.0, 3.0)
    2.8
    >>> silence_s([], 1.0, 3.0)
    inf
    """
    later = [one for one in answers if one > at]
    if not later:
        return inf
    return round(max(after - before for before, after in pairwise([at, *later]) if before <= mended), 9)


SILENT_AIM = "p50 2 s, most 3 s"
AIMS = {
    **dict.fromkeys(("short freeze", "freeze", "cut off", "link cut"), SILENT_AIM),
    **dict.fromkeys(("cut one way, nothing from it", "cut one way, nothing to it"), SILENT_AIM),
    "power cut of all": "10 s",
}
"""The longest that there should be no answer, by kind of incident."""
HEADS = (
    *("event", "times", "no answer, p50", "most", "aim", "new plan after, p50", "most", "slowest request"),
    *("replays", "retries", "lost", "wrong"),
)


def lines(found: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Yield a table line for each kind, in order of first occurrence, then one for all incidents together."""
    for kind in dict.fromkeys(row.kind for row in found):
        yield _line(kind, [row for row in found if row.kind == kind])
    if found:
        yield _line("all", found)


def _line(name: str, some: Sequence[Row]) -> tuple[str, ...]:
    calm = [row for row in some if row.counts]
    silent = [row.silence_s for row in calm]
    plans = [row.replanned_s for row in calm if row.replanned_s is not None]
    return (
        name,
        str(len(some)) + (f", {len(some) - len(calm)} disturbed" if len(calm) < len(some) else ""),
        _s(median(silent)) if silent else "",
        _s(max(silent)) if silent else "",
        AIMS.get(name, ""),
        _s(median(plans)) if plans else "",
        _s(max(plans)) if plans else "",
        _s(max(row.slowest_s for row in calm)) if calm else "",
        *(str(sum(getattr(row, field) for row in some)) for field in ("replays", "retries", "lost", "wrong")),
    )


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


def sentence(one: Outcome) -> str:
    """Return the figures of the whole run as a sentence."""
    return (
        f"{one.sent} requests, {one.answered} answered, {one.lost} lost, {one.wrong} wrong; {len(one.ghosts)} ghosts; "
        f"longest time without an answer {one.longest_gap_s:.2f} s; a request in calm takes {one.calm_s * 1e3:.0f} ms; "
        f"the machine stood still for {one.stood_still_s:.2f} s at most"
    )


def shifted(done: Sequence[Done], began: float) -> list[Done]:
    """Return the acts with times counted from the start of the schedule, which people read more easily."""
    return [replace(one, at=round(one.at - began, 3)) for one in done]
