"""Resulting rates of faults for each pair, against three plain tables into which every order is written."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.lab.hosts import OUTSIDE
from tests.lab.links import Links, ways
from tests.lab.shaping import CUT

STATIONS = {OUTSIDE: 1, "a": 2, "b": 3, "c": 4}
NAMES = st.sampled_from(sorted(STATIONS))
ENDS = st.tuples(NAMES, st.none() | NAMES).filter(lambda ends: ends[0] != ends[1])
FAULTS = st.tuples(ENDS, st.booleans(), st.sampled_from([CUT, 1e4, 1e5, 1e6]))
HEALS = ENDS | st.tuples(st.none(), st.none())
RATES = st.dictionaries(st.sampled_from("abc"), st.floats(1e3, 1e6))


class Tables:
    def __init__(self) -> None:
        self.links: dict[tuple[str, str], float] = {}
        self.sent: dict[str, float] = {}
        self.heard: dict[str, float] = {}

    def fault(self, one: str, other: str | None, one_way: bool, rate: float) -> None:
        if other is None:
            self.sent[one] = rate
            if not one_way:
                self.heard[one] = rate
        else:
            self.links[one, other] = rate
            if not one_way:
                self.links[other, one] = rate

    def heal(self, one: str | None, other: str | None) -> None:
        for pair in list(self.links):
            if one is None or (one in pair and (other is None or other in pair)):
                del self.links[pair]
        if other is None:
            for table in (self.sent, self.heard):
                for name in list(table) if one is None else [one]:
                    table.pop(name, None)

    def bounds(self, sender: str, receiver: str) -> list[float]:
        found = (self.links.get((sender, receiver)), self.sent.get(sender), self.heard.get(receiver))
        return [rate for rate in found if rate is not None]


@given(st.lists(FAULTS | HEALS, max_size=8), RATES)
def test_the_worst_of_what_was_asked_for_counts(orders: list[Any], rates: dict[str, float]) -> None:
    links, tables = Links(), Tables()
    for host, rate in rates.items():
        links = links.with_rate(host, rate)
    for order in orders:
        match order:
            case ((one, other), one_way, rate):
                links = links.with_fault(ways(one, other, one_way), rate)
                tables.fault(one, other, one_way, rate)
            case (one, other):
                links = links.healed(one, other)
                tables.heal(one, other)
    for sender, receiver in permutations(STATIONS, 2):
        own = [rates[receiver]] if sender == OUTSIDE and receiver in rates else []
        expected = min([*tables.bounds(sender, receiver), *own], default=None)
        assert links.between(sender, receiver) == expected
        assert links.into(receiver, STATIONS).get(STATIONS[sender]) == expected


def test_packets_suit_the_slowest_way_that_carries_anything() -> None:
    links = Links().with_rate("a", 1e6).with_rate("b", 2e6)
    assert links.slowest_from("a", STATIONS) == 1e6
    assert links.slowest_from(OUTSIDE, STATIONS) == 1e6
    assert links.slowest_from("c", STATIONS) is None
    slowed = links.with_fault(ways("c", "a", one_way=True), 5e5).with_fault(ways("c", "b", one_way=True), CUT)
    assert slowed.slowest_from("c", STATIONS) == 5e5
    assert slowed.slowest_from("a", STATIONS) == 1e6
    assert links.with_rate("a", None).slowest_from(OUTSIDE, STATIONS) == 2e6
