"""Gathering: which waiting requests are run as one, and when. Rules: time is an argument, and no door is here.

A line holds the requests that wait for one deployment with rows of the same shapes and types. A run begins as soon as the
rows of a full run wait, or the first request has waited for the delay, or its deadline is near; meanwhile, and while a run
is under way, further requests gather. Requests are run in the order in which they came.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import inf

from edgepart.planner.errors import InternalError

RUNS_AT_ONCE = 2
"""The most runs of a line under way: one computes while another one's tensors travel. A run that is not full begins only if
there is no other."""
SPARE_SHARE = 0.5
"""A request waits for others at most until this share of its time is left, whatever the delay is. A larger share leaves
more for the run, and for running the request alone if the run fails; a smaller one lets more requests gather."""


@dataclass(frozen=True, slots=True)
class GatherLimits:
    """How requests of one deployment are gathered."""

    rows: int
    """The most rows of a run, at least 2."""
    delay_s: float
    """Seconds that a request waits for others while no run is under way. A longer delay fills runs better; a shorter one
    answers sooner where there are few requests."""


@dataclass(frozen=True, slots=True)
class GatheredRequest:
    """A request that waits."""

    number: int
    rows: int
    due_s: float
    """The time until which it waits while no run is under way."""


class GatherLine:
    """The line of one deployment and one shape of rows."""

    def __init__(self, limits: GatherLimits) -> None:
        self.limits = limits
        self.under_way = 0
        """The number of runs that have begun and not ended."""
        self._waiting: OrderedDict[int, GatheredRequest] = OrderedDict()
        self._rows = 0

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self.under_way

    def arrive(self, number: int, rows: int, now: float, until: float) -> None:
        """Lets a request wait. `until` is the time of its deadline."""
        if not 0 < rows <= self.limits.rows or number in self._waiting:
            raise InternalError(f"request {number} of {rows} rows cannot be gathered")
        patience_s = min(self.limits.delay_s, max(until - now, 0.0) * (1 - SPARE_SHARE))
        self._waiting[number] = GatheredRequest(number, rows, now + patience_s)
        self._rows += rows

    def withdraw(self, number: int) -> None:
        """Forgets a request that does not wait any more, if it still does."""
        gone = self._waiting.pop(number, None)
        self._rows -= gone.rows if gone is not None else 0

    def next(self, now: float) -> tuple[int, ...]:
        """The numbers of the requests whose run begins now; () if none does."""
        if not self._waiting or self.under_way >= RUNS_AT_ONCE:
            return ()
        is_full = self._rows >= self.limits.rows
        is_due = not self.under_way and now >= self._due_s
        if not (is_full or is_due):
            return ()
        taken: list[int] = []
        left = self.limits.rows
        while self._waiting and (first := next(iter(self._waiting.values()))).rows <= left:
            left -= first.rows
            taken.append(first.number)
            self.withdraw(first.number)
        self.under_way += 1
        return tuple(taken)

    def end(self) -> None:
        """Counts a run as ended."""
        if not self.under_way:
            raise InternalError("a run of gathered requests ended that had not begun")
        self.under_way -= 1

    @property
    def wake_at(self) -> float:
        """The time at which `next` may begin a run although nothing else happens; inf if there is none."""
        return inf if self.under_way else self._due_s

    @property
    def _due_s(self) -> float:
        return min((one.due_s for one in self._waiting.values()), default=inf)


@dataclass(slots=True)
class PlanVerdict:
    """What is known of the answers of a plan for requests that are run together, or for texts that are read together."""

    is_right: bool = False
    """Whether the answers of such a run were those of its requests alone."""
    fault: str = ""
    """Why that is not done; "" if it may be."""
