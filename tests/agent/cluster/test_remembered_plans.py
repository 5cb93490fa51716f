"""A device that is lost and comes back: the plan of before is taken again, without a search, where it still suits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.cluster.leader.remembered_plans import MOST_PLANS, RememberedPlans
from edgepart.agent.cluster.leader.replan_policy import PlanningTiming
from edgepart.agent.cluster.leader.rollout_state import PlanRollout
from edgepart.agent.cluster.state.cards import MeasuredDevice, write_card
from edgepart.agent.cluster.state.events import RIGHT, WRONG, ComputePlan, PlanKey, SendMessage, TryPlan
from edgepart.agent.wire.control import Card, Prepare, Retire, Version
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.devices.cluster import Device, Link
from tests.agent.cluster.simnet import SimNet, node_id
from tests.agent.cluster.test_cluster_stories import calm, uses
from tests.agent.cluster.test_judged_plans import ENTRY, NODES, Story, plan, serves

A, B, C, D = map(node_id, range(1, 5))
LINK = Link(1e8, 1e-3, 1e-4)
DEVICE = Device("pi", "bcm2711", 1e10, 4e9, 3e9, 4)


def searched(net: SimNet) -> list[ComputePlan]:
    """Every search for something better than what serves, from now on. A thorough one takes ten seconds."""
    orders: list[ComputePlan] = []

    def search_s(order: ComputePlan) -> float:
        if order.current:
            orders.append(order)
        return 1.0 if order.quick else 10.0

    net.search_s = search_s
    return orders


def without_one(seed: int, away_s: float = 90.0) -> tuple[SimNet, list[ComputePlan]]:
    """Four boxes of which one is lost, for long enough that nothing is searched for any more."""
    net = calm(4, seed)
    net.run(60)
    orders = searched(net)
    net.crash(D)
    net.until(lambda: uses(net, A, B, C), 10)
    net.run(away_s)
    orders.clear()
    return net, orders


@pytest.mark.parametrize("away_s", [15.0, 90.0])
def test_a_device_that_comes_back_takes_part_again_without_a_search(away_s: float) -> None:
    for seed in range(3):
        net, orders = without_one(seed, away_s)
        tried = len(net.tried)
        net.start(D)
        assert net.until(lambda net=net: uses(net, A, B, C, D), 30) < 6.0  # type: ignore[misc]
        assert not [order for order in orders if len(order.key.devices) == 4], (
            "nothing had to be searched for"
        )
        epoch = net.boxes[A].active["net"]
        assert epoch in {order.epoch for _, order in net.tried[tried:]}, "it is tried before it serves again"
        net.run(60)
        assert net.boxes[A].active["net"] == epoch and net.settled_faults() == []
        assert len(net.standings["net"].covered) == 4


def test_a_plan_that_was_not_compared_since_links_were_measured_again_is_remembered_too() -> None:
    story, split = Story(), plan(0.5, a=0.3, b=0.4)
    story.serve(split)
    story.links_s = 1e-4
    story.cutover.plans.remembered.forget(story.orders[0].key)  # As when it was itself remembered.
    story.step(0.0)
    wanted = story.cutover.plans.planning.key(story.world.cluster, ENTRY, story.now)
    found = story.cutover.plans.remembered.find(wanted, story.world.cluster.cards)
    assert found is not None and found.placement.order.plan == split and not found.best


def test_a_plan_that_fails_its_trial_when_it_comes_back_is_not_taken_again() -> None:
    net, orders = without_one(5)
    wrong: list[TryPlan] = []

    def verdict(order: TryPlan) -> tuple[str, str]:
        fails = not wrong
        wrong.append(order)
        return (WRONG, "it answers something else") if fails else (RIGHT, "")

    net.verdict = verdict
    net.start(D)
    net.until(lambda: bool(wrong), 30)
    net.until(lambda: any(len(order.key.devices) == 4 for order in orders), 30)
    assert next(order for order in orders if len(order.key.devices) == 4).quick, "a thorough one takes long"
    net.until(lambda: net.settled_faults() == [], 60)


def test_a_plan_that_is_still_being_loaded_gives_way_to_the_one_of_before() -> None:
    split, better = plan(0.5, a=0.3, b=0.4), plan(0.8, a=0.8)
    story = Story(alone_s=0.9, slow=better)
    story.serve(split)
    while not any(story.cutover.plans.spares) or story.cutover.plans.spares.has_pending(story.world):
        story.step()
    story.here = ("a",)
    story.activate()
    assert serves(story) == 0.9
    while len(story.orders[-1].key.devices) > 1:
        story.step()
    story.answer(better, current_s=0.9)
    story.step()
    coming = story.prepared[-1]
    assert coming.plan == better
    story.here = NODES
    story.step(PlanningTiming().flap_s)
    sent = [one.message for one in story.step(PlanningTiming().most_hold_s) if isinstance(one, SendMessage)]
    assert Retire(1, "net", coming.epoch) in sent
    assert story.prepared[-1].plan == split and story.prepared[-1].epoch > coming.epoch
    story.activate()
    assert serves(story) == 0.5


def card(node: str, link: Link = LINK, *, peer: str = "a", **keys: Any) -> Card:
    """A device with a link to `peer`."""
    links = {} if node == peer else {peer: link}
    return Card(node, write_card(MeasuredDevice(replace(DEVICE, **keys), links)))


def key(nodes: str, **keys: Any) -> PlanKey:
    return replace(PlanKey("net", Version(1, "a"), tuple((n, f"box-{n}", "digest") for n in nodes)), **keys)


def serving(number: int) -> PlanRollout:
    order = Prepare(1, "net", Version(1, "a"), Epoch(1, number), b"plan", (), "m", (), 0.5, {})
    return PlanRollout(order)


CARDS = {node: card(node) for node in "abcd"}


@pytest.mark.parametrize(
    ("cards", "found"),
    [
        ({}, True),
        ({"b": card("b", flops_per_s=1.2e10)}, True),
        ({"b": card("b", flops_per_s=2e10)}, False),
        ({"b": card("b", memory_bytes_per_s=1e9)}, False),
        ({"b": card("b", Link(4e7, 4e-3, 1e-4))}, True),
        ({"b": card("b", Link(1e9, 0.0, 1e-4))}, True),
        ({"b": card("b", Link(2e7, 1e-3, 1e-4))}, False),
        ({"b": card("b", Link(1e8, 1e-2, 1e-4))}, False),
        ({"a": card("a", Link(2e7, 1e-3, 1e-4), peer="b")}, False),  # Its other end has measured it again.
        ({"b": Card("b", write_card(MeasuredDevice(DEVICE)))}, False),
    ],
)
def test_a_plan_is_remembered_for_devices_that_are_as_fast_and_links_that_are_not_much_slower(
    cards: dict[str, Card], found: bool
) -> None:
    known = RememberedPlans()
    known.note(serving(1), key("ab"), CARDS, best=True, latency_s=0.5)
    assert (known.find(key("ab"), CARDS | cards) is not None) == found


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ({"disappointed": "digest"}, True),
        ({"version": Version(2, "a")}, False),
        ({"refused": (("structure", "fault"),)}, False),
    ],
)
def test_a_plan_is_remembered_for_the_same_model(now: dict[str, Any], found: bool) -> None:
    known = RememberedPlans()
    known.note(serving(1), key("ab"), CARDS, best=True, latency_s=0.5)
    assert (known.find(key("ab", **now), CARDS) is not None) == found


@pytest.mark.parametrize(
    ("before", "now", "latency_s"),
    [
        ((), (), 0.5),
        ((), (("b", 2.0),), 1.0),
        ((("b", 2.0),), (), 0.5),  # It has started again.
        ((("b", 2.0),), (("b", 2.0),), 0.5),
        ((("a", 1.5), ("b", 2.0)), (("a", 3.0), ("b", 2.0)), 1.0),
        ((("b", 2.0),), (("b", 1.0),), 0.5),  # Other devices may be the slowest now.
    ],
)
def test_what_devices_have_drifted_since_makes_the_plan_take_longer(
    before: tuple[tuple[str, float], ...], now: tuple[tuple[str, float], ...], latency_s: float
) -> None:
    known = RememberedPlans()
    known.note(serving(1), key("ab", drifts=before), CARDS, best=True, latency_s=0.5)
    found = known.find(key("ab", drifts=now), CARDS)
    assert found is not None and found.latency_with(now) == latency_s


@given(st.lists(st.tuples(st.frozensets(st.sampled_from("abcdef"), min_size=1), st.booleans()), max_size=40))
def test_of_the_sets_of_devices_that_were_there_last_the_last_plan_is_remembered(
    served: list[tuple[frozenset[str], bool]],
) -> None:
    cards = {node: card(node) for node in "abcdef"}
    known, twin = RememberedPlans(), dict[frozenset[str], PlanRollout]()
    for number, (nodes, forget) in enumerate(served):
        wanted = key("".join(sorted(nodes)))
        if forget:
            known.forget(wanted)
            twin.pop(nodes, None)
        else:
            placement = serving(number)
            known.note(placement, wanted, cards, best=False, latency_s=0.5)
            twin.pop(nodes, None)
            twin[nodes] = placement
        twin = dict([*twin.items()][-MOST_PLANS:])
        assert len(known) == len(twin)
        for some, placement in twin.items():
            found = known.find(key("".join(sorted(some))), cards)
            assert found is not None and found.placement is placement
