"""Whom a client asks, how often, and when it gives up; as stories on a clock of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, floats, integers, lists, sampled_from

from edgepart.client.members import (
    LEARN_S,
    LONGEST_PAUSE_S,
    MOST_PATIENCE,
    STRANGE_ROUNDS,
    KnownMembers,
    RequestTries,
)

A, B, C = "http://a", "http://b", "http://c"


def known(*urls: str, met: bool = True) -> KnownMembers:
    members = KnownMembers(urls)
    members.met = met
    return members


def test_each_other_member_is_asked_at_once_and_then_there_is_a_pause() -> None:
    tries = RequestTries(known(A, B, C), 60.0)
    assert tries.url == A
    assert tries.lost(A, 0.0) == 0.0 and tries.url == B
    assert tries.lost(B, 0.0) == 0.0 and tries.url == C
    pause_s = tries.lost(C, 0.0)
    assert pause_s and tries.url == A and tries.failures == 3
    assert tries.patience == 2


def test_the_next_request_begins_with_the_member_that_answered() -> None:
    members = known(A, B)
    tries = RequestTries(members, 60.0)
    tries.lost(A, 0.0)
    members.answered(B)
    assert RequestTries(members, 60.0).url == B


def test_two_requests_that_lose_the_same_member_do_not_skip_the_next() -> None:
    members = known(A, B, C)
    one, other = RequestTries(members, 60.0), RequestTries(members, 60.0)
    one.lost(A, 0.0)
    other.lost(A, 0.0)
    assert (one.url, other.url, members.current) == (B, B, B)


def test_a_strange_address_is_given_up_soon_and_a_known_cluster_when_the_time_is_up() -> None:
    strange = RequestTries(known(A, met=False), 60.0)
    assert [strange.lost(A, 0.0) is None for _ in range(STRANGE_ROUNDS)] == [False] * (STRANGE_ROUNDS - 1) + [
        True
    ]
    now, tries = 0.0, RequestTries(known(A), 60.0)
    while (pause_s := tries.lost(A, now)) is not None:
        now += pause_s
    assert now > 60.0 - LONGEST_PAUSE_S
    assert tries.patience == MOST_PATIENCE


def test_a_busy_member_is_left_for_another_at_once_and_waited_for_if_there_is_none() -> None:
    tries = RequestTries(known(A, B), 60.0)
    assert tries.busy(A, 0.7, 0.0) == 0.0
    assert tries.lost(B, 0.0) == 0.7
    assert RequestTries(known(A), 60.0).busy(A, 600.0, 0.0) == LONGEST_PAUSE_S


def test_the_member_in_use_is_believed_and_one_that_takes_over_is_not() -> None:
    assert RequestTries(known(A, B), 60.0).refused(A, 0.0) is None
    tries = RequestTries(known(A, B, C), 60.0)
    tries.lost(A, 0.0)
    assert tries.refused(B, 0.0) == 0.0 and tries.url == C
    assert tries.refused(C, 0.0) is None


def test_a_refusal_is_not_final_while_a_member_that_may_know_better_is_busy() -> None:
    tries = RequestTries(known(A, B), 60.0)
    tries.busy(A, 0.2, 0.0)
    assert tries.refused(B, 0.0) == 0.2
    assert tries.url == A


def test_members_are_learned_and_forgotten_but_not_those_that_the_user_named() -> None:
    members = known(A)
    members.learn([B, C], 0.0)
    assert members.urls == (A, B, C)
    members.failed(A, 1.0)
    members.learn([C, "http://d"], 1.0)
    assert members.urls == (C, A, "http://d")


def test_it_is_time_to_learn_after_a_while_and_after_a_failure_once() -> None:
    members = known(A, B)
    assert not members.must_learn(1e9), "who has never asked for the members wants none"
    members.learn([B], 0.0)
    assert not members.must_learn(LEARN_S - 1)
    assert members.must_learn(LEARN_S) and not members.must_learn(LEARN_S)
    members.failed(A, LEARN_S + 1)
    assert members.must_learn(LEARN_S + 1)


def test_hints_are_added_behind_what_is_known() -> None:
    members = known(A, B)
    members.add([C, A])
    assert members.urls == (A, B, C)


@given(lists(sampled_from([A, B, C]), min_size=1, unique=True), floats(0, 30), data())
def test_every_request_ends_and_no_member_is_left_out(
    urls: list[str], limit_s: float, drawn: DataObject
) -> None:
    """Whatever fails how, each round asks every member once, pauses add up to no more than the limit, and a request that
    nothing answers ends."""
    tries, now, asked = RequestTries(known(*urls), limit_s), 0.0, 0
    round_: set[str] = set()
    for _ in range(10_000):
        url = tries.url
        assert url not in round_
        round_.add(url)
        asked += 1
        if drawn.draw(integers(0, 1)) if asked < 8 else 0:
            pause_s = tries.busy(url, drawn.draw(floats(0, 5)), now)
        else:
            pause_s = tries.lost(url, now)
        if pause_s is None:
            break
        if round_ >= set(urls):
            assert pause_s > 0
            round_.clear()
        else:
            assert pause_s == 0
        now += pause_s
        assert now < limit_s
    else:
        pytest.fail("it goes on for ever")
    assert tries.failures == asked
