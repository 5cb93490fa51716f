"""The history of requests: how many were answered, how fast, and how many failed, over the last minutes. Rules: time is an
argument, and nothing runs while no request comes.

Time is cut into slices of SLICE_S seconds. A slice counts durations in bins whose borders grow by a twelfth or so, so that
a quantile is right to about five per cent, whatever the number of requests. Memory is bounded: SLICES slices of about 1 kB
for each of MOST_DEPLOYMENTS deployments, which are 2 MB.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SLICE_S = 5.0
SLICES = 60
WINDOW_S = SLICE_S * SLICES
"""The history covers this many seconds."""
LATELY_S = 60.0
"""The figures of "now" are those of this many last seconds."""
MOST_DEPLOYMENTS = 32
"""The most deployments whose history is kept; the one that was not asked for longest is forgotten first."""
MOST_REASONS = 8
"""The most kinds of errors that a slice tells apart; others count as OTHER."""
OTHER = "other"

SHORTEST_S = 1e-5
BINS_PER_OCTAVE = 8
BINS = 28 * BINS_PER_OCTAVE
"""The last bin is that of requests that took about 3,000 seconds or more."""


def bin_of(seconds: float) -> int:
    """The bin of a duration.

    >>> bin_of(0.0), bin_of(1e-5), bin_of(1e9) == BINS - 1
    (0, 0, True)
    """
    if seconds <= SHORTEST_S:
        return 0
    return min(int(math.log2(seconds / SHORTEST_S) * BINS_PER_OCTAVE), BINS - 1)


def middle_of(number: int) -> float:
    """The duration, in seconds, that stands for a bin: the middle of its logarithms."""
    return float(SHORTEST_S * 2 ** ((number + 0.5) / BINS_PER_OCTAVE))


def quantile(bins: Iterable[int], part: float) -> float | None:
    """The duration that `part` of all durations do not exceed; None if there are none.

    >>> counts = [0] * BINS
    >>> counts[bin_of(0.1)] = 99
    >>> counts[bin_of(2.0)] = 1
    >>> round(quantile(counts, 0.5), 1), round(quantile(counts, 1.0)), quantile([0] * BINS, 0.5)
    (0.1, 2, None)
    """
    counts = list(bins)
    left = part * sum(counts)
    if not any(counts):
        return None
    for number, count in enumerate(counts):
        left -= count
        if count and left <= 1e-9:
            return middle_of(number)
    return middle_of(max(number for number, count in enumerate(counts) if count))


@dataclass(slots=True)
class TimeSlice:
    """What happened to one deployment's requests within SLICE_S seconds."""

    number: int
    """The slice's begin, in SLICE_S of the clock."""
    answered: int = 0
    tokens: int = 0
    """Tokens of texts that ended in the slice."""
    failed: Counter[str] = field(default_factory=Counter)
    """Failed requests by the kind of error."""
    bins: array[int] = field(default_factory=lambda: array("L", bytes(BINS * array("L").itemsize)))


@dataclass(frozen=True, slots=True)
class LastRequest:
    """The request that was answered last."""

    at_s: float
    """When it was answered, by the clock of the history."""
    seconds: float
    queue_s: float
    replays: int


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """One deployment's requests over a stretch of time."""

    per_s: float
    """Answered requests a second."""
    p50_s: float | None
    p99_s: float | None
    failed: int
    tokens_per_s: float


@dataclass(slots=True)
class DeploymentHistory:
    """One deployment's slices, the oldest first."""

    slices: deque[TimeSlice] = field(default_factory=lambda: deque(maxlen=SLICES))
    last: LastRequest | None = None
    since_s: float = 0.0


class RequestHistory:
    """The history of the requests that clients sent to one agent."""

    def __init__(self) -> None:
        self._deployments: OrderedDict[str, DeploymentHistory] = OrderedDict()

    def answered(
        self, model: str, now: float, seconds: float, queue_s: float = 0.0, replays: int = 0
    ) -> None:
        """Count a request that took `seconds`, of which it waited `queue_s`."""
        one = self._slice(model, now)
        one.answered += 1
        one.bins[bin_of(seconds)] += 1
        self._deployments[model].last = LastRequest(now, seconds, queue_s, replays)

    def failed(self, model: str, now: float, kind: str) -> None:
        """Count a request that ended with an error of this kind."""
        failed = self._slice(model, now).failed
        failed[kind if kind in failed or len(failed) < MOST_REASONS else OTHER] += 1

    def grown(self, model: str, now: float, tokens: int) -> None:
        """Count the tokens of a text that ended."""
        self._slice(model, now).tokens += tokens

    def models(self) -> list[str]:
        return sorted(self._deployments)

    def last(self, model: str) -> LastRequest | None:
        found = self._deployments.get(model)
        return None if found is None else found.last

    def lately(self, model: str, now: float) -> RequestFigures:
        """The figures of the last LATELY_S seconds, or of the time since the first request if that is shorter."""
        count = round(LATELY_S / SLICE_S)
        found = self._deployments.get(model)
        since = now if found is None else found.since_s
        seconds = min(max(now - since, SLICE_S), LATELY_S - SLICE_S + now % SLICE_S)
        return summarise(list(self._within(model, now, count)), seconds)

    def series(self, model: str, now: float) -> list[RequestFigures]:
        """The figures of each slice, the oldest first; the last one is under way."""
        by_number = {one.number: one for one in self._within(model, now, SLICES)}
        current = int(now // SLICE_S)
        return [
            summarise(
                [by_number[number]] if number in by_number else [],
                SLICE_S if number < current else max(now - current * SLICE_S, 1.0),
            )
            for number in range(current - SLICES + 1, current + 1)
        ]

    def errors(self, model: str, now: float) -> dict[str, int]:
        """Failed requests of the whole window by kind, the most frequent first."""
        found: Counter[str] = Counter()
        for one in self._within(model, now, SLICES):
            found.update(one.failed)
        return dict(found.most_common())

    def _within(self, model: str, now: float, count: int) -> Iterator[TimeSlice]:
        """The slices of the last `count`, the current one included."""
        found = self._deployments.get(model)
        first = int(now // SLICE_S) - count + 1
        return (one for one in (found.slices if found else ()) if one.number >= first)

    def _slice(self, model: str, now: float) -> TimeSlice:
        found = self._deployments.get(model)
        if found is None:
            found = self._deployments[model] = DeploymentHistory(since_s=now)
            if len(self._deployments) > MOST_DEPLOYMENTS:
                self._deployments.popitem(last=False)
        self._deployments.move_to_end(model)
        number = int(now // SLICE_S)
        if not found.slices or found.slices[-1].number < number:
            found.slices.append(TimeSlice(number))
        return found.slices[-1]


def summarise(slices: list[TimeSlice], seconds: float) -> RequestFigures:
    """The figures of these slices, which cover `seconds`."""
    bins = [sum(counts) for counts in zip(*(one.bins for one in slices), strict=True)]
    return RequestFigures(
        sum(one.answered for one in slices) / seconds,
        quantile(bins, 0.5),
        quantile(bins, 0.99),
        sum(one.failed.total() for one in slices),
        sum(one.tokens for one in slices) / seconds,
    )
