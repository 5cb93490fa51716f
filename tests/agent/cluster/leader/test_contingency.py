"""Two members that lose each other while others reach both: which pairs count, and what a cluster makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.cluster.leader.contingency import MIN_CUT_S, ContingencyPlans, LastingCuts
from edgepart.agent.cluster.leader.replan_policy import ClusterView
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout
from edgepart.agent.cluster.state.events import Member
from edgepart.agent.wire.control import ALIVE, FAILED, LOADING, READY, Holding, Prepare, Report, Version
from edgepart.agent.wire.inference import Epoch
from tests.agent.cluster.simnet import node_id
from tests.agent.cluster.test_cluster_stories import calm

A, B, C = map(node_id, range(1, 4))
PAIRS = [(A, B), (A, C), (B, C)]


@given(st.lists(st.tuples(st.floats(0, 1), st.sets(st.sampled_from(PAIRS))), max_size=20))
def test_a_pair_counts_when_it_was_broken_at_every_look_for_long_enough(
    looks: list[tuple[float, set[tuple[str, str]]]],
) -> None:
    apart, now = LastingCuts(), 0.0
    seen: list[tuple[float, set[tuple[str, str]]]] = []
    for wait_s, broken in looks:
        now += wait_s
        seen.append((now, broken))
        found = apart.look(broken, now)
        for pair in PAIRS:
            whole = [number for number, (_, some) in enumerate(seen) if pair not in some]
            began = (whole[-1] + 1) if whole else 0
            assert (pair in found) == (began < len(seen) and now >= seen[began][0] + MIN_CUT_S)
        waits = {pair for pair in broken if pair not in found}
        assert (apart.wake_at(now) < math.inf) == bool(waits)


def test_a_link_that_stays_cut_is_done_without_by_a_plan_that_is_ready() -> None:
    for seed in range(3):
        net = calm(3, seed)
        net.run(20)  # spare plans are ready
        net.plan_error = lambda order: ("it is busy with something else", False)
        net.cut(B, C)
        net.until(lambda net=net: net.devices(net.boxes[A], "net") in ({A, B}, {A, C}), 6)  # type: ignore[misc]
        net.plan_error = lambda order: ("", False)
        net.run(5)
        assert net.boxes[A].members == {A, B, C}
        net.heal()
        net.until(lambda net=net: net.devices(net.boxes[A], "net") == {A, B, C}, 60)  # type: ignore[misc]


def test_a_link_that_is_back_at_once_moves_nothing() -> None:
    net = calm(3, 4)
    net.run(20)
    before = dict(net.boxes[A].active)
    net.cut(B, C)
    net.run(0.5)
    net.heal()
    net.run(20)
    assert net.boxes[A].active == before


VERSION = Version(1, A)
D = node_id(4)
NODES = (A, B, C, D)


def plan(number: int, *nodes: str, latency_s: float = 1.0) -> PlanRollout:
    names = tuple((f"box{int(node, 16)}", node) for node in nodes)
    return PlanRollout(
        Prepare(1, "net", VERSION, Epoch(1, number), b"", names, "m", (A,), latency_s, {}, memory_bytes=())
    )


def world(present: Iterable[str], states: Mapping[int, str]) -> LeaderView:
    """These members, each of which holds every plan, by its number, in this state."""
    members = tuple(Member(node, node, "boot", ALIVE, (), "", "") for node in sorted(present))
    holdings = tuple(Holding("net", Epoch(1, number), state, False) for number, state in states.items())
    reports = {member.node: Report("boot", holdings, ("m",), ()) for member in members}
    return LeaderView(A, 1, ClusterView(members, {}, {}, frozenset()), reports)


def sheltered() -> tuple[ContingencyPlans, PlanRollout, PlanRollout]:
    """For a plan that serves on all four: a refuge, and a plan for the loss of D."""
    plans, refuge, kept = ContingencyPlans(), plan(2, D, latency_s=4.0), plan(3, A, B, C)
    plans.add_refuge(A, refuge)
    plans.add(D, kept)
    return plans, refuge, kept


def test_a_refuge_covers_the_loss_of_every_device_but_its_own_until_a_plan_is_made_for_it() -> None:
    plans, _, _ = sheltered()
    assert all(plans.shelters(node) for node in NODES)
    assert [node in plans for node in NODES] == [
        False,
        False,
        False,
        True,
    ]  # for these, plans are still to be made
    assert plans.covers(plan(1, *NODES), world(NODES, {2: READY, 3: LOADING}), tried=False) == (
        "box1",
        "box2",
        "box3",
    )


def test_a_refuge_whose_device_is_gone_may_be_made_anew_and_one_that_cannot_be_loaded_is_not() -> None:
    for present, states, again in (
        ((A, B, C), {2: READY, 3: READY}, True),
        (NODES, {2: FAILED, 3: READY}, False),
    ):
        plans, _, kept = sheltered()
        plans.give_up(world(present, states))
        assert [*plans] == [kept]
        assert plans.shelters(A) != again
        assert plans.shelters(D)


def test_what_is_ready_takes_over_and_else_what_is_loaded_soonest() -> None:
    plans, refuge, kept = sheltered()
    present = (A, B, C, D)
    for states, best in (
        ({2: READY, 3: READY}, kept),
        ({2: READY, 3: LOADING}, refuge),
        ({2: LOADING, 3: READY}, kept),
        ({2: LOADING, 3: LOADING}, refuge),
    ):
        assert plans.best(world(present, states), waiting=True) is best
        assert plans.best(world(present, states), waiting=False) is kept


@given(st.lists(st.sets(st.sampled_from(NODES), min_size=1), max_size=6))
def test_whatever_was_loaded_covers_no_fewer_losses_once_another_plan_serves(some: list[set[str]]) -> None:
    others = [plan(number, *sorted(nodes)) for number, nodes in enumerate(some, 10)]
    plans = ContingencyPlans()
    plans.serves(plan(1, *NODES), others)
    for lost in NODES:
        assert plans.shelters(lost) == any(lost not in nodes for nodes in some)
    found = ContingencyPlans(plan(1, *NODES).order, [one.order for one in plans])
    assert all(found.shelters(lost) == plans.shelters(lost) for lost in NODES)
