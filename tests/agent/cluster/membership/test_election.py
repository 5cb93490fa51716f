"""Who leads: terms are never shared, leaders meet and one stays, joiners take nothing over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.cluster.membership.election import (
    MAX_TERM,
    Election,
    ElectionTiming,
    next_term,
    term_round,
)
from edgepart.agent.cluster.state.events import Effect, LeaderChanged, PersistTerm
from edgepart.agent.wire.control import Heartbeat
from edgepart.agent.wire.inference import NODE_BITS

A, B, C = "000000000000000a", "000000000000000b", "000000000000000c"


def beat(leader: str, term: int, seen: int | None = None) -> Heartbeat:
    return Heartbeat("boot", 1, term if seen is None else seen, leader, term)


def kept(election: Election, effects: list[Effect], now: float) -> list[Effect]:
    """With what follows when its disk has written what it was to."""
    for effect in list(effects):
        if isinstance(effect, PersistTerm):
            effects += kept(election, election.kept(effect.term, now), now)
    return effects


def leader_of(node: str, term: int = 0) -> Election:
    """One that leads alone."""
    election = Election(node, term, 0.0)
    kept(election, election.wake(10.0), 10.0)
    assert election.leading
    return election


@given(st.integers(0, MAX_TERM // 2), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
@settings(max_examples=100)
def test_a_next_term_is_larger_and_its_makers_own(seen: int, one: int, other: int) -> None:
    a, b = next_term(seen, f"{one:016x}"), next_term(seen, f"{other:016x}")
    assert a > seen and term_round(a) == term_round(seen) + 1
    assert (a == b) == (one % 2**NODE_BITS == other % 2**NODE_BITS)


def test_alone_it_waits_for_others_and_then_leads_with_the_term_on_disk_first() -> None:
    election = Election(A, 7, 0.0)
    assert election.wake(1.0) == []
    term = next_term(7, A)
    assert election.wake(election.wake_at()) == [PersistTerm(term)]
    assert election.wake(5.0) == [] and election.seen_term == 7, "nobody hears of a term that is not on disk"
    assert election.kept(term, 6.0) == [LeaderChanged(A, term)]


def test_alone_it_waits_longer_while_somebody_may_be_about_to_answer() -> None:
    meeting, timing = True, ElectionTiming()
    election = Election(A, 7, 0.0, timing, meeting=lambda: meeting)
    assert election.wake(election.wake_at()) == [] == election.wake(timing.start_s + 1.0)
    meeting = False
    assert election.wake(timing.start_s + 1.1) == [PersistTerm(next_term(7, A))], "all have failed to answer"
    election = Election(A, 7, 0.0, timing, meeting=lambda: True)
    assert election.wake(timing.start_s) == []
    assert election.wake_at() == timing.meeting_s
    assert election.wake(timing.meeting_s) == [PersistTerm(next_term(7, A))], "nobody waits for ever"


def test_who_is_met_late_keeps_the_lead() -> None:
    b, a = leader_of(B, next_term(0, C)), Election(A, next_term(0, C), 0.0, meeting=lambda: True)
    assert a.wake(2.0) == []
    a.members_changed([B], 2.1)
    assert a.heard(B, beat(B, b.term), 2.1) == [PersistTerm(b.term), LeaderChanged(B, b.term)]
    assert a.wake(9.0) == []


def test_whoever_waits_for_its_disk_follows_a_leader_that_comes_meanwhile() -> None:
    a = Election(A, 0, 0.0)
    own, other = next_term(0, A), next_term(next_term(0, B), B)
    assert a.wake(2.0) == [PersistTerm(own)]
    a.members_changed([B], 3.0)
    assert a.heard(B, beat(B, other), 3.0) == [PersistTerm(other), LeaderChanged(B, other)]
    assert a.kept(own, 4.0) == [] == a.kept(other, 5.0)
    assert (a.leader, a.seen_term) == (B, other)
    again = next_term(other, A)
    assert a.members_changed([], 6.0) == [PersistTerm(again), LeaderChanged("", 0)]
    assert a.kept(again, 7.0) == [LeaderChanged(A, again)]


def test_a_term_that_was_never_used_is_used_when_it_is_its_turn_again() -> None:
    a = Election(A, 0, 0.0)
    (asked,) = a.wake(2.0)
    assert asked == PersistTerm(next_term(0, A))
    a.members_changed([B], 3.0)  # not yet: views may differ for a moment
    assert a.kept(next_term(0, A), 3.1) == []
    assert a.wake(4.0) == [LeaderChanged(A, next_term(0, A))]


def test_the_smallest_id_takes_over_the_others_wait() -> None:
    a, b = Election(A, 0, 0.0), Election(B, 0, 0.0)
    a.members_changed([B], 1.0)
    b.members_changed([A], 1.0)
    assert b.wake(9.0) == []
    kept(a, a.wake(9.0), 9.0)
    assert a.leading
    assert b.heard(A, beat(A, a.term), 9.0) == [PersistTerm(a.term), LeaderChanged(A, a.term)]


def test_a_joiner_with_a_smaller_id_follows() -> None:
    b, a = leader_of(B), Election(A, 0, 10.0)
    a.members_changed([B], 10.0)
    a.heard(B, beat(B, b.term), 10.1)
    b.members_changed([A], 10.0)
    b.heard(A, beat(B, b.term), 10.2)
    assert (a.leader, b.leader) == (B, B)


def test_where_two_leaders_meet_the_larger_term_stays() -> None:
    a, b = leader_of(A), leader_of(B, next_term(0, C))
    a.members_changed([B], 11.0)
    b.members_changed([A], 11.0)
    effects = a.heard(B, beat(B, b.term), 11.0)
    assert effects == [PersistTerm(b.term), LeaderChanged(B, b.term)]
    assert b.heard(A, beat(A, next_term(0, A)), 11.0) == []


def test_equal_terms_of_clashing_ids_are_settled_by_the_id() -> None:
    one, other = "00000000000000ff", "ff000000000000ff"  # the same low bits
    a, b = leader_of(one), leader_of(other)
    assert a.term == b.term
    a.members_changed([other], 11.0)
    b.members_changed([one], 11.0)
    a.heard(other, beat(other, b.term), 11.0)
    b.heard(one, beat(one, a.term), 11.0)
    assert (a.leader, b.leader) == (other, other)


def test_a_leader_that_hears_of_a_larger_term_takes_a_larger_one_still() -> None:
    a = leader_of(A)
    a.members_changed([B], 11.0)
    used = next_term(next_term(next_term(0, B), B), B)
    effects = a.heard(B, beat("", 0, seen=used), 11.0)
    assert effects == [PersistTerm(next_term(used, A))] and a.leading
    assert a.kept(next_term(used, A), 12.0) == [LeaderChanged(A, next_term(used, A))]


def test_when_the_leader_is_lost_the_next_takes_over_at_once_but_not_while_another_still_hears_it() -> None:
    b = Election(B, 0, 0.0)
    b.members_changed([A, C], 0.0)
    term = next_term(0, A)
    b.heard(A, beat(A, term), 1.0)
    b.heard(C, beat(A, term), 1.0)
    assert b.members_changed([C], 5.0) == [LeaderChanged("", 0)]
    effects = kept(b, b.heard(C, beat("", 0, seen=term), 5.0), 5.0)
    assert [type(effect) for effect in effects] == [PersistTerm, LeaderChanged]
    assert b.leading and b.term > term


def test_what_a_member_claimed_before_its_restart_is_void() -> None:
    b = Election(B, 0, 0.0)
    b.members_changed([A], 0.0)
    b.heard(A, beat(A, next_term(0, A)), 1.0)
    b.restarted(A)
    b.wake(2.0)
    assert b.leader == ""


def test_impossible_terms_and_strangers_are_not_believed() -> None:
    a = leader_of(A)
    a.members_changed([B], 11.0)
    assert a.heard(B, beat(B, MAX_TERM), 11.0) == []
    assert a.heard(B, beat(B, -1, seen=0), 11.0) == []
    assert a.heard(C, beat(C, 2**50), 11.0) == []
    assert a.leading


@given(st.integers(0, 2**32), st.lists(st.integers(0, 2**40), min_size=2, max_size=4))
@settings(max_examples=60)
def test_whatever_they_knew_before_one_leads_and_no_term_is_led_twice(seed: int, terms: list[int]) -> None:
    rng = random.Random(seed)
    ids = [f"{n:016x}" for n in range(len(terms))]
    nodes = {node: Election(node, term, rng.uniform(0, 3)) for node, term in zip(ids, terms, strict=True)}
    led: dict[int, str] = {}

    def note(node: str, effects: list[Effect], now: float) -> None:
        for effect in kept(nodes[node], effects, now):
            if isinstance(effect, LeaderChanged) and effect.leader == node:
                assert led.setdefault(effect.term, node) == node

    for node, election in nodes.items():
        started_at = rng.uniform(0, 10)
        note(node, election.wake(started_at), started_at)
    for node, election in nodes.items():
        note(node, election.members_changed([other for other in ids if other != node], 10.0), 10.0)
    for n in range(40 * len(ids)):
        node, other = rng.sample(ids, 2)
        sender = nodes[node]
        said = beat(sender.leader, sender.term, sender.seen_term)
        note(other, nodes[other].heard(node, said, 11.0 + n), 11.0 + n)
    assert len({(election.leader, election.term) for election in nodes.values()}) == 1
    assert nodes[nodes[ids[0]].leader].leading


class Plain(Election):
    """The same, but it looks at all that every member claims each time."""

    def _decide(self, now: float, told_term: int = 0) -> Iterator[Effect]:
        self._decided_at, self._undecided = now, False
        claims = self._claims.items()
        seen = max([self.seen_term, *(max(claim.term, claim.seen_term) for _, claim in claims)])
        best = max(((c.term, node) for node, c in claims if c.leader == node), default=(0, ""))
        if self.leading and best < (self.term, self.node):
            if seen > self.term:
                yield from self._lead(seen)
            return
        self.seen_term = seen
        yield from self._persist(seen)
        followed = {claim.leader for claim in self._claims.values()} - {"", self.node}
        first = all(self.node < node for node in self._alive)
        if best[1]:
            yield from self._follow(best[1], best[0])
        elif now >= self._not_before and first and not followed:
            yield from self._lead(seen)
        else:
            yield from self._follow("", 0)


NODES = [A, B, C, "000000000000000d"]
HAPPENS = st.one_of(
    st.tuples(st.just("members"), st.sets(st.sampled_from(NODES))),
    st.tuples(
        st.just("beat"),
        st.tuples(
            st.sampled_from(NODES), st.sampled_from([*NODES, ""]), st.integers(0, 9), st.integers(0, 9)
        ),
    ),
    st.tuples(st.just("restart"), st.sampled_from(NODES)),
    st.tuples(st.just("wait"), st.floats(0, 1)),
    st.tuples(st.just("written"), st.just(None)),
)


@given(st.sampled_from(NODES), st.lists(HAPPENS, max_size=30))
@settings(max_examples=200)
def test_what_is_remembered_of_claims_decides_as_a_look_at_all_of_them(
    me: str, happens: list[tuple[str, Any]]
) -> None:
    quick, plain = Election(me, 3, 0.0), Plain(me, 3, 0.0)
    now = 0.0
    for kind, what in happens:
        told: list[list[Effect]] = []
        for one in (quick, plain):
            if kind == "members":
                told.append(one.members_changed(what - {me}, now))
            elif kind == "beat":
                node, leader, term, seen = what
                said = Heartbeat("boot", 1, seen << NODE_BITS, leader, term << NODE_BITS)
                told.append([] if node == me else one.heard(node, said, now))
            elif kind == "written":
                told.append(one.kept(one._asked_term, now))
            elif kind == "restart":
                one.restarted(what)
                told.append(one.wake(now))
            else:
                told.append(one.wake(now + what))
        now += what if kind == "wait" else 0.0
        assert told[0] == told[1]
        assert (quick.leader, quick.term, quick.seen_term) == (plain.leader, plain.term, plain.seen_term)
        assert quick.wake_at() == plain.wake_at()
