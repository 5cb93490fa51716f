"""What hosts hear of each other: the faults that were asked for, and what comes of them for each pair. Facts and rules.

A fault is one way: from a station to a station, either of which may be EVERYBODY. Where several meet, the worst counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.lab.hosts import OUTSIDE
from tests.lab.shaping import CUT

EVERYBODY = "*"

Way = tuple[str, str]
"""From, to."""


def ways(one: str, other: str | None, one_way: bool) -> Iterator[Way]:
    """The links meant by "from `one` to `other`", or all of `one`'s where there is no other; there, and back too
    unless `one_way`."""
    yield one, other or EVERYBODY
    if not one_way:
        yield other or EVERYBODY, one


@dataclass(frozen=True)
class Links:
    """The rates that were asked for. Each change makes a new one."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """What each host sends at, in bytes a second; not named: freely."""
    faults: Mapping[Way, float] = field(default_factory=dict)
    """Bytes a second, or CUT."""

    def with_fault(self, which: Iterable[Way], rate: float) -> Links:
        return Links(self.rates, {**self.faults, **dict.fromkeys(which, rate)})

    def with_rate(self, host: str, rate: float | None) -> Links:
        others = {name: value for name, value in self.rates.items() if name != host}
        return Links(others if rate is None else {**others, host: rate}, self.faults)

    def healed(self, one: str | None = None, other: str | None = None) -> Links:
        """Without the faults between the two, both ways; without all of `one`'s, those of single links
        included; without any."""

        def gone(way: Way) -> bool:
            if one is None:
                return True
            return one in way if other is None else set(way) == {one, other}

        return Links(self.rates, {way: rate for way, rate in self.faults.items() if not gone(way)})

    def between(self, sender: str, receiver: str) -> float | None:
        """Bytes a second on the switch, besides what the sender's own cable carries; None where there is no bound."""
        bounds = [
            self.faults[way]
            for way in ((sender, receiver), (sender, EVERYBODY), (EVERYBODY, receiver))
            if way in self.faults
        ]
        if sender == OUTSIDE and receiver in self.rates:
            bounds.append(self.rates[receiver])
        return min(bounds, default=None)

    def into(self, receiver: str, stations: Mapping[str, int]) -> dict[int, float]:
        """The bounds on the port to `receiver`, by the sender's number."""
        found = {
            number: self.between(name, receiver) for name, number in stations.items() if name != receiver
        }
        return {number: rate for number, rate in found.items() if rate is not None}

    def slowest_from(self, sender: str, stations: Iterable[str]) -> float | None:
        """Of all ways out of `sender` that carry anything; None where none is bounded."""
        bounds = [
            self.rates.get(sender),
            *(self.between(sender, other) for other in stations if other != sender),
        ]
        return min((rate for rate in bounds if rate is not None and rate != CUT), default=None)
