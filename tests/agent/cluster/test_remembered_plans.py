"""A device that is lost and comes back: the plan of before is taken again, without a search, where it still suits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.cluster.leader.remembered_plans import MOST_PLANS, RememberedPlans
from edgepart.agent.cluster.leader.rollout_state import PlanRollout
from edgepart.agent.cluster.state.cards import MeasuredDevice, write_card
from edgepart.agent.cluster.state.events import RIGHT, WRONG, ComputePlan, PlanKey, TryPlan
from edgepart.agent.wire.control import Card, Prepare, Version
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.devices.cluster import Device, Link
from tests.agent.cluster.simnet import SimNet, node_id
from tests.agent.cluster.test_cluster_stories import calm, uses

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
    net.until(lambda: net.settled_faults() == [], 60)


def card(node: str, link: Link = LINK, **keys: Any) -> Card:
    """A device with a link to `a`."""
    links = {} if node == "a" else {"a": link}
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
        ({"b": card("b", Link(2e7, 1e-3, 1e-4))}, False),
        ({"b": card("b", Link(1e8, 1e-2, 1e-4))}, False),
        ({"b": Card("b", write_card(MeasuredDevice(DEVICE)))}, False),
    ],
)
def test_a_plan_is_remembered_for_devices_and_links_that_are_about_as_fast(
    cards: dict[str, Card], found: bool
) -> None:
    known = RememberedPlans()
    known.note(serving(1), key("ab"), CARDS, best=True, latency_s=0.5)
    assert (known.find(key("ab"), CARDS | cards) is not None) == found


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({}, {"disappointed": "digest"}, True),
        ({}, {"version": Version(2, "a")}, False),
        ({}, {"refused": (("structure", "fault"),)}, False),
        ({}, {"drifts": (("b", 2.0),)}, False),
        ({"drifts": (("b", 2.0),)}, {}, True),
        ({"drifts": (("a", 1.5), ("b", 2.0))}, {"drifts": (("a", 1.5),)}, True),
        ({"drifts": (("a", 1.5), ("b", 2.0))}, {"drifts": (("a", 2.0),)}, False),
    ],
)
def test_a_plan_is_remembered_for_the_same_model_and_drifts(
    before: dict[str, Any], now: dict[str, Any], found: bool
) -> None:
    known = RememberedPlans()
    known.note(serving(1), key("ab", **before), CARDS, best=True, latency_s=0.5)
    assert (known.find(key("ab", **now), CARDS) is not None) == found


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
