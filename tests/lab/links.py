"""Links between hosts: the faults that were asked for, and the resulting rate for each pair. Does no I/O.

A fault is one-way: from a station to a station, either of which may be EVERYBODY. If several apply, the worst
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.lab.hosts import OUTSIDE
from tests.lab.shaping import CUT

EVERYBODY = "*"

Way = tuple[str, str]
"""Sender and receiver."""


def ways(one: str, other: str | None, one_way: bool) -> Iterator[Way]:
    """Yield the way from `one` to `other`, or to everybody without `other`; and back, unless `one_way`."""
    yield one, other or EVERYBODY
    if not one_way:
        yield other or EVERYBODY, one


@dataclass(frozen=True)
class Links:
    """Rates and faults that were asked for. Each change makes a new object."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """The rate at which each host sends, in bytes per second; other hosts send freely."""
    faults: Mapping[Way, float] = field(default_factory=dict)
    """Bytes per second, or CUT."""

    def with_fault(self, which: Iterable[Way], rate: float) -> Links:
        return Links(self.rates, {**self.faults, **dict.fromkeys(which, rate)})

    def with_rate(self, host: str, rate: float | None) -> Links:
        others = {name: value for name, value in self.rates.items() if name != host}
        return Links(others if rate is None else {**others, host: rate}, self.faults)

    def healed(self, one: str | None = None, other: str | None = None) -> Links:
        """Return links without the faults between the two, both ways; or without all that involve `one`,
        single links included; or without any."""

        def gone(way: Way) -> bool:
            if one is None:
                return True
            return one in way if other is None else set(way) == {one, other}

        return Links(self.rates, {way: rate for way, rate in self.faults.items() if not gone(way)})

    def between(self, sender: str, receiver: str) -> float | None:
        """Return the bound on the switch in bytes per second, apart from the sender's own cable; None if
        there is none."""
        bounds = [
            self.faults[way]
            for way in ((sender, receiver), (sender, EVERYBODY), (EVERYBODY, receiver))
            if way in self.faults
        ]
        if sender == OUTSIDE and receiver in self.rates:
            bounds.append(self.rates[receiver])
        return min(bounds, default=None)

    def into(self, receiver: str, stations: Mapping[str, int]) -> dict[int, float]:
        """Return the bounds on the port to `receiver`, by the sender's number."""
        found = {
            number: self.between(name, receiver) for name, number in stations.items() if name != receiver
        }
        return {number: rate for number, rate in found.items() if rate is not None}

    def slowest_from(self, sender: str, stations: Iterable[str]) -> float | None:
        """Return the lowest bound of all ways out of `sender` that carry anything; None if none is bounded."""
        bounds = [
            self.rates.get(sender),
            *(self.between(sender, other) for other in stations if other != sender),
        ]
        return min((rate for rate in bounds if rate is not None and rate != CUT), default=None)
