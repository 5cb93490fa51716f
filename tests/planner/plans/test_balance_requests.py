"""Dealing: where a request is done first, and how many a replica has at the most."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.plans.balance_requests import balance_requests, choose_replica, expected_answer_s
from edgepart.planner.plans.plan import Replica

PACES = st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0, 10.0])
REPLICAS = st.lists(st.builds(Replica, st.just(()), PACES, PACES), min_size=1, max_size=5)


def test_one_is_done_after_its_latency_or_after_all_that_are_there() -> None:
    staged = Replica(("a", "b", "c"), latency_s=3.0, between_s=1.0)
    assert [expected_answer_s(staged, there) for there in range(5)] == [3.0, 3.0, 3.0, 4.0, 5.0]


def test_equal_ones_get_one_after_the_other_and_slow_ones_fewer() -> None:
    assert balance_requests([Replica((), 1.0, 1.0)] * 3, 7) == [3, 2, 2]
    assert balance_requests([Replica((), 1.0, 1.0), Replica((), 4.0, 4.0)], 5) == [4, 1]
    assert balance_requests([Replica(())] * 2, 4) == [2, 2]  # Nothing is known of them.


@given(REPLICAS, st.data())
def test_nobody_would_be_done_sooner_and_the_first_of_the_emptiest_is_taken(
    replicas: list[Replica], data: st.DataObject
) -> None:
    there = data.draw(st.lists(st.integers(0, 9), min_size=len(replicas), max_size=len(replicas)))
    among = data.draw(st.sets(st.integers(0, len(replicas) - 1), min_size=1))
    taken = choose_replica(replicas, there, among)
    assert taken in among
    for n in among - {taken}:
        mine, other = (
            expected_answer_s(replicas[taken], there[taken]),
            expected_answer_s(replicas[n], there[n]),
        )
        assert mine < other or (mine == other and (there[taken], taken) < (there[n], n))


@given(REPLICAS, st.integers(1, 12), st.integers(0, 2**32))
def test_none_ever_has_more_than_where_none_is_answered(
    replicas: list[Replica], most: int, seed: int
) -> None:
    chance, there, bound = Random(seed), [0] * len(replicas), balance_requests(replicas, most)
    assert sum(bound) == most
    for _ in range(60):
        if sum(there) < most and chance.random() < 0.6:
            there[choose_replica(replicas, there)] += 1
        elif busy := [n for n, count in enumerate(there) if count]:
            there[chance.choice(busy)] -= 1
        assert all(count <= bound[n] for n, count in enumerate(there))
