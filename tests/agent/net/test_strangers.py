"""Who gives a place up when all are taken: a law over random crowds, and a member among an attacker's connections."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.net.strangers import Stranger, Strangers

PLACES = 4
SPARED_S = 1.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3), st.booleans()), max_size=40))
def test_places_are_bounded_and_the_crowd_gives_way(arrivals: list[tuple[str, float, bool]]) -> None:
    strangers, now, inside = Strangers(PLACES, SPARED_S), 0.0, dict[int, tuple[str, float]]()
    for number, (host, pause_s, leaves) in enumerate(arrivals):
        now += pause_s
        stranger = Stranger(host, now, partial(inside.pop, number))
        before = dict(inside)
        let_in = strangers.admit(number, stranger)
        lost = before.keys() - inside.keys()
        if let_in:
            inside[number] = host, now
        assert len(strangers) == len(inside) <= PLACES
        if len(before) < PLACES:
            assert let_in and not lost
        elif let_in:
            (loser,) = lost
            held = Counter(name for name, _ in before.values())
            assert held[before[loser][0]] == max(held.values()) > held[host]
            assert now - before[loser][1] >= SPARED_S
        if leaves and inside:
            gone = min(inside)
            strangers.leave(gone)
            strangers.leave(gone)
            del inside[gone]


def test_a_member_finds_a_place_among_any_number_of_one_attackers_connections() -> None:
    strangers, cut = Strangers(64, 0.5), threading.Event()
    for number in range(1000):
        strangers.admit(("evil", number), Stranger("10.0.0.66", number * 0.001, cut.set))
    assert len(strangers) == 64 and not cut.is_set()
    assert strangers.admit("member", Stranger("10.0.0.2", 1.2, lambda: None)) and cut.is_set()
    assert not strangers.admit(("evil", 1000), Stranger("10.0.0.66", 1.3, lambda: None))
    assert len(strangers) == 64
