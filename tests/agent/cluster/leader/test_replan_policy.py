"""When a deployment is planned, and when it moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.cluster.leader.replan_policy import (
    ClusterView,
    PlanningTiming,
    ReplanPolicy,
    choose_left_out,
    select_members,
)
from edgepart.agent.cluster.state.events import Member, PlanComputed, PlanFailed, PlanKey
from edgepart.agent.wire.control import ALIVE, SUSPECT, Card, Deployment, Version
from edgepart.agent.wire.inference import DeployOptions

TIMING = PlanningTiming()


def cluster(
    *nodes: str,
    broken: frozenset[tuple[str, str]] = frozenset(),
    unmeasured: str = "",
    state_of_b: str = ALIVE,
) -> ClusterView:
    states = {"b": state_of_b}
    members = tuple(Member(n, f"box-{n}", "1", states.get(n, ALIVE), (), "", "") for n in nodes)
    cards = {n: Card(n, n.encode()) for n in nodes if n != unmeasured}
    return ClusterView(members, cards, {n: f"digest-{n}" for n in cards}, broken)


def deployment(*devices: str) -> Deployment:
    return Deployment("net", "m", 1, DeployOptions(devices=devices), Version(1, "a"))


def looking(planning: ReplanPolicy, *nodes: str, now: float) -> PlanKey:
    key = planning.key(cluster(*nodes), deployment(), now)
    planning.look(key, now)
    return key


def computed(key: PlanKey, plan: bytes, latency_s: float, current_s: float) -> PlanComputed:
    return PlanComputed(key, plan, tuple(name for _, name, _ in key.devices), latency_s, current_s)


def names(rows: list[Member]) -> str:
    return "".join(member.node for member in rows)


def test_only_living_measured_chosen_members_compute() -> None:
    assert names(select_members(cluster("a", "b", "c"), deployment(), {"b"})) == "ac"
    assert (
        names(select_members(cluster("a", "b", "c", unmeasured="a", state_of_b=SUSPECT), deployment(), ()))
        == "c"
    )
    assert names(select_members(cluster("a", "b", "c"), deployment("box-b", "box-x"), ())) == "b"


def test_of_a_broken_pair_the_worse_linked_one_sits_out() -> None:
    broken = frozenset({("a", "b"), ("a", "c")})
    assert names(select_members(cluster("a", "b", "c", "d", broken=broken), deployment(), ())) == "bcd"
    assert names(select_members(cluster("a", "b", broken=frozenset({("a", "b")})), deployment(), ())) == "a"


def test_without_a_plan_any_is_asked_for_at_once_and_taken() -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", "b", now=0.0)
    assert planning.ask(key, 0.0, b"", urgent=True)
    assert not planning.ask(key, 0.0, b"", urgent=True)  # under way
    assert planning.find_needed_plan(0.0) is None
    result = computed(key, b"plan", 9.0, float("inf"))
    planning.answered(result, 0.5)
    assert planning.find_needed_plan(0.5) == result


def test_who_waits_takes_what_was_planned_for_devices_that_were_measured_again_since() -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", "b", now=0.0)
    planning.ask(key, 0.0, b"", urgent=True)
    again = replace(key, devices=tuple((node, name, "again") for node, name, _ in key.devices))
    planning.look(again, 0.2)
    result = computed(key, b"plan", 9.0, float("inf"))
    planning.answered(result, 0.5)
    assert planning.find_needed_plan(0.5) is None
    assert planning.find_needed_plan(0.5, waiting=True) == result


@pytest.mark.parametrize(("latency_s", "moves"), [(0.94, True), (0.96, False), (1.5, False)])
def test_a_serving_one_moves_only_for_a_clear_gain(latency_s: float, moves: bool) -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", "b", now=0.0)
    assert not planning.ask(key, 0.5, b"old", urgent=False)  # the cluster may change again
    assert planning.ask(key, 1.0, b"old", urgent=False)
    planning.answered(computed(key, b"new", latency_s, 1.0), 1.5)
    assert (planning.better(b"old", 1.5) is not None) == moves
    assert planning.is_settled(b"old") != moves
    if not moves:
        assert not planning.ask(key, 99.0, b"old", urgent=False)  # it was compared


@pytest.mark.parametrize("gains", [True, False])
def test_a_quick_search_is_followed_by_a_thorough_one(gains: bool) -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", "b", now=0.0)
    assert planning.ask(key, 1.0, b"old", urgent=False, quick=True)
    assert not planning.ask(key, 1.1, b"old", urgent=False)  # under way
    hasty = replace(computed(key, b"hasty", 0.5 if gains else 2.0, 1.0), quick=True)
    planning.answered(hasty, 2.0)
    assert planning.better(b"old", 2.0) == (hasty if gains else None)
    serving = b"hasty" if gains else b"old"
    assert not planning.is_settled(serving)
    assert planning.ask(key, 2.0, serving, urgent=False)
    planning.answered(computed(key, b"new", 1.5, 1.0), 12.0)
    assert planning.better(serving, 12.0) is None
    assert planning.is_settled(serving)
    assert not planning.ask(key, 99.0, serving, urgent=False)


@pytest.mark.parametrize("quick", [True, False])
def test_what_a_quick_search_found_counts_though_links_were_measured_meanwhile(quick: bool) -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", "b", now=0.0)
    assert planning.ask(key, 1.0, b"old", urgent=False, quick=quick)
    again = replace(key, devices=tuple((node, name, "again") for node, name, _ in key.devices))
    planning.look(again, 1.5)
    found = replace(computed(key, b"new", 0.5, 1.0), quick=quick)
    planning.answered(found, 2.0)
    assert planning.better(b"old", 2.0) == (found if quick else None)
    assert planning.better(b"other", 2.0) is None  # It was compared with the old one.
    looking(planning, "a", "b", "c", now=3.0)
    assert planning.better(b"old", 3.0) is None


def test_a_quick_plan_that_was_given_up_does_not_come_again_and_a_thorough_search_follows() -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", "b", now=0.0)
    assert planning.ask(key, 1.0, b"old", urgent=False, quick=True)
    planning.answered(replace(computed(key, b"hasty", 0.5, 1.0), quick=True), 2.0)
    planning.settle(b"old")  # Its segments were timed, and it is slower than predicted.
    assert planning.better(b"old", 2.0) is None
    assert not planning.is_settled(b"old")
    assert planning.is_compared(key, b"old")  # quickly
    assert planning.ask(key, 2.0, b"old", urgent=False)
    planning.answered(computed(key, b"new", 2.0, 1.0), 12.0)
    assert planning.better(b"old", 12.0) is None
    assert planning.is_settled(b"old")
    again = replace(key, devices=tuple((node, name, "again") for node, name, _ in key.devices))
    planning.look(again, 20.0)
    assert planning.better(b"old", 20.0) is None


def test_a_quick_search_takes_the_place_of_a_thorough_one_for_other_devices() -> None:
    planning = ReplanPolicy(TIMING)
    before = looking(planning, "a", "b", now=0.0)
    assert planning.ask(before, 1.0, b"old", urgent=False)
    joined = looking(planning, "a", "b", "c", now=20.0)
    assert not planning.ask(joined, 21.0, b"old", urgent=False)
    assert planning.ask(joined, 21.0, b"old", urgent=False, quick=True)
    last = looking(planning, "a", "b", "c", "d", now=40.0)
    assert not planning.ask(last, 41.0, b"old", urgent=False, quick=True)  # The quick one is soon over.


def test_a_quick_search_does_not_take_the_place_of_a_contingency_plan_s() -> None:
    planning = ReplanPolicy(TIMING)
    looking(planning, "a", "b", now=0.0)
    spare = planning.key(cluster("a", "b"), deployment(), 5.0, without="b")
    assert planning.ask(spare, 5.0, b"", urgent=False)
    joined = looking(planning, "a", "b", "c", now=20.0)
    assert not planning.ask(joined, 21.0, b"old", urgent=False, quick=True)


def test_a_quick_search_that_fails_settles_nothing() -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", "b", now=0.0)
    assert planning.ask(key, 1.0, b"old", urgent=False, quick=True)
    planning.answered(PlanFailed(key, "no time", "Infeasible", True), 2.0)
    assert planning.better(b"old", 2.0) is None
    assert planning.ask(key, 2.0, b"old", urgent=False)


def test_who_was_searched_for_is_no_newcomer_any_more() -> None:
    planning = ReplanPolicy(TIMING)
    before = looking(planning, "a", "b", now=0.0)
    assert not planning.has_newcomers(before, b"old", before, "a")
    assert not planning.has_newcomers(before, b"old", None, "ab")  # of another leader
    assert planning.has_newcomers(before, b"old", None, "a")
    joined = looking(planning, "a", "b", "c", now=20.0)
    assert planning.has_newcomers(joined, b"old", before, "a")
    assert planning.ask(joined, 21.0, b"old", urgent=False)
    planning.answered(computed(joined, b"new", 2.0, 1.0), 31.0)
    assert planning.better(b"old", 31.0) is None  # It serves on without c.
    assert not planning.has_newcomers(joined, b"old", before, "a")
    assert not planning.has_newcomers(looking(planning, "a", "c", now=40.0), b"old", before, "a")
    assert planning.has_newcomers(
        joined, b"spare", before, "a"
    )  # That took over since, and was made without it.


def test_the_same_plan_again_is_no_move() -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", now=0.0)
    assert planning.ask(key, 1.0, b"old", urgent=False)
    planning.answered(computed(key, b"old", 0.1, 1.0), 1.5)
    assert planning.better(b"old", 1.5) is None


def test_flapping_makes_it_wait_longer_and_calm_forgives() -> None:
    planning = ReplanPolicy(TIMING)
    now, waits = 0.0, []
    for n in range(8):
        looking(planning, *("ab" if n % 2 else "a"), now=now)
        waits.append(planning.ask_at(b"old", urgent=False) - now)
        now += 2.0
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    looking(planning, "a", "c", now=now + 20.0)
    assert planning.ask_at(b"old", urgent=False) == now + 21.0


def test_boxes_that_join_together_are_waited_for_no_longer_than_one() -> None:
    planning = ReplanPolicy(TIMING)
    looking(planning, "a", now=0.0)
    for n, nodes in enumerate(["ab", "abc", "abcd"]):
        looking(planning, *nodes, now=20.0 + 0.5 * n)
        assert planning.ask_at(b"old", urgent=False) == 21.0 + 0.5 * n
    looking(planning, *"abd", now=21.5)  # Of two newcomers, the link is not up yet.
    assert planning.ask_at(b"old", urgent=False) == 22.5
    looking(planning, *"bcd", now=22.0)
    assert planning.ask_at(b"old", urgent=False) == 24.0  # One that was there is lost,
    looking(planning, *"abcd", now=22.5)
    assert planning.ask_at(b"old", urgent=False) == 26.5  # and comes back.


def test_links_that_a_newcomer_measures_count_as_one_change() -> None:
    planning = ReplanPolicy(TIMING)
    looking(planning, "a", "b", now=0.0)
    now, waits = 20.0, []
    for n in range(6):
        cards = {node: f"digest-{node}-{n}" for node in "abc"}
        planning.look(planning.key(replace(cluster("a", "b", "c"), digests=cards), deployment(), now), now)
        waits.append(planning.ask_at(b"old", urgent=False) - now)
        now += 0.5
    assert waits == pytest.approx([1.0] * 6)
    now += 3.0  # The wait has passed, and they measure again.
    looking(planning, "a", "b", "c", now=now)
    assert planning.ask_at(b"old", urgent=False) == now + 2.0


def test_a_failure_that_may_pass_is_retried_ever_later_and_one_for_good_is_not() -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", now=0.0)
    waits, now = [], 0.0
    for _ in range(8):
        assert planning.ask(key, now, b"", urgent=True)
        planning.answered(PlanFailed(key, "worker died", "InternalError", False), now)
        planning.find_needed_plan(now)
        assert planning.error is not None and planning.error.error == "worker died"
        wait = planning.ask_at(b"", urgent=True) - now
        waits.append(wait)
        assert not planning.ask(key, now + wait / 2, b"", urgent=True)
        now += wait
        assert planning.find_needed_plan(now) is None
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert planning.ask(key, now, b"", urgent=True)
    planning.answered(PlanFailed(key, "too big", "Infeasible", True), now)
    assert planning.find_needed_plan(now + 1000) is None
    assert not planning.ask(key, now + 1000, b"", urgent=True)
    other = looking(planning, "a", "b", now=now)
    assert planning.ask(other, now, b"", urgent=True)  # other devices are another question


def test_a_contingency_plan_is_there_when_its_device_is_lost() -> None:
    planning = ReplanPolicy(TIMING)
    looking(planning, "a", "b", now=0.0)
    spare = planning.key(cluster("a", "b"), deployment(), 5.0, without="b")
    assert planning.ask(spare, 5.0, b"", urgent=False)
    planning.answered(computed(spare, b"alone", 2.0, float("inf")), 5.5)
    assert not planning.ask(spare, 6.0, b"", urgent=False)  # known
    assert looking(planning, "a", now=9.0) == spare
    found = planning.find_needed_plan(9.0)
    assert found is not None and found.plan == b"alone"


def test_what_serves_after_a_loss_may_be_left_for_a_plan_on_some_of_the_devices_that_are_here_by_now() -> (
    None
):
    planning = ReplanPolicy(TIMING)
    before = looking(planning, "a", "b", now=0.0)
    planning.answered(computed(before, b"two", 0.5, 1.0), 1.0)
    alone = replace(before, alone=True)
    planning.answered(computed(alone, b"one", 0.4, float("inf")), 1.5)
    looking(planning, "a", "b", "c", now=2.0)  # c came while the search ran
    found = planning.find_faster(1.0)
    assert found is not None and found.plan == b"two"  # of those on several devices
    assert planning.find_faster(0.5 / TIMING.gain) is None  # no gain
    needed = planning.find_needed_plan(2.0, waiting=True)
    assert needed is not None and needed.plan == b"one"  # as it is loaded soonest
    looking(planning, "a", "c", now=3.0)
    assert planning.find_faster(1.0) is None


def test_a_quick_search_that_finds_nothing_better_is_followed_by_a_thorough_one() -> None:
    planning = ReplanPolicy(TIMING)
    key = looking(planning, "a", "b", now=0.0)
    assert planning.ask(key, 0.0, b"one", urgent=False, quick=True, held=False)
    planning.answered(replace(computed(key, b"two", 1.0, 1.0), quick=True), 0.5)
    assert planning.better(b"one", 0.5) is None and not planning.is_settled(b"one")
    assert not planning.ask(key, 9.0, b"one", urgent=False, quick=True)
    assert planning.ask(key, 9.0, b"one", urgent=False)
    planning.answered(computed(key, b"two", 1.0, 1.0), 19.0)
    assert planning.better(b"one", 19.0) is None
    assert planning.is_settled(b"one")


def test_a_device_that_could_not_load_is_avoided_for_longer_each_time() -> None:
    planning = ReplanPolicy(TIMING)
    planning.avoid("a", 0.0, "a has no room")
    assert planning.devices_to_avoid(29.9) == {"a"} and planning.devices_to_avoid(30.0) == set()
    planning.avoid("a", 40.0, "a has no room")
    assert planning.devices_to_avoid(99.9) == {"a"} and planning.devices_to_avoid(100.0) == set()


def test_results_are_bounded() -> None:
    planning = ReplanPolicy(TIMING)
    for n in range(1000):
        key = PlanKey("net", Version(n, "a"), (("a", "box", "d"),))
        planning.answered(computed(key, b"plan", 1.0, 1.0), float(n))
    assert len(planning._results) <= 64


@given(st.sets(st.sampled_from("abcdefgh")), st.sets(st.tuples(*2 * [st.sampled_from("abcdefghi")])))
def test_whom_broken_links_leave_out_is_found_one_after_the_other(
    nodes: set[str], links: set[tuple[str, str]]
) -> None:
    broken = {pair for pair in links if pair[0] != pair[1]}
    rest = set(nodes)
    while pairs := [pair for pair in broken if set(pair) <= rest]:
        rest.remove(max((sum(node in pair for pair in pairs), node) for node in rest)[1])
    assert choose_left_out(nodes, broken) == nodes - rest
