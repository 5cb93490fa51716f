"""A device that slows down while it serves, and what a whole cluster makes of it: virtual time, fake shells."""

from __future__ import annotations

from functools import partial

import pytest

from edgepart.agent.cluster.state.events import ComputePlan, DriftMeasured, UndeployRequested
from tests.agent.cluster.test_cluster_stories import calm, uses
from tests.simulation.cluster import SimNet, node_id

A, B, C = map(node_id, range(1, 4))


def searches(net: SimNet) -> list[ComputePlan]:
    """From now on, those that compare with what serves."""
    found: list[ComputePlan] = []

    def keep(order: ComputePlan) -> tuple[str, bool]:
        if order.current:
            found.append(order)
        return "", False

    net.plan_error = keep
    return found


def measure(net: SimNet, node: str, factor: float, deployment: str = "net") -> None:
    net.give(net.boxes[node], DriftMeasured(deployment, factor))


def test_the_leader_searches_once_with_what_a_device_measured_and_once_without_it() -> None:
    for seed in range(4):
        net = calm(3, seed, deployed=False)
        found = searches(net)
        net.deploy(B)
        net.until(partial(uses, net, *net.boxes), 30)
        net.run(5)
        measure(net, C, 4.0)
        net.run(60.0)
        assert found[-1].key.drifts == ((C, 4.0),)
        measure(net, C, 1.0)
        net.run(60.0)
        against_what_serves = [order.key.drifts for order in found if order.current == found[-1].current]
        assert sorted(against_what_serves) == [(), ((C, 4.0),)]
        assert not net.settled_faults()


def test_a_new_leader_knows_what_devices_measured() -> None:
    net = calm(3, 1)
    measure(net, C, 4.0)
    net.run(30.0)
    assert {net.core(node).drifts.factor(C, "net") for node in net.boxes} == {4.0}
    net.crash(A)
    found = searches(net)
    net.run(60.0)
    assert net.core(B).leader == B
    assert {order.key.drifts for order in found} <= {((C, 4.0),)}
    measure(net, C, 2.0)
    net.run(60.0)
    assert found[-1].key.drifts == ((C, 2.0),)


def test_who_was_away_is_told_again_and_one_that_starts_anew_is_as_calibrated() -> None:
    net = calm(3, 2)
    net.crash(B)
    measure(net, C, 4.0)
    net.run(5.0)
    net.start(B)
    net.run(30.0)
    assert net.core(B).drifts.factor(C, "net") == 4.0
    net.crash(C)
    net.start(C)
    net.run(30.0)
    assert {net.core(node).drifts.factor(C, "net") for node in net.boxes} == {1.0}


def test_a_device_that_wavers_makes_few_searches() -> None:
    net = calm(3, 3)
    found = searches(net)
    for n in range(60):
        measure(net, C, 4.0 if n % 2 else 1.0)
        net.run(10.0)
    assert 1 <= len(found) <= 8
    assert not net.settled_faults()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_undeployed_is_forgotten(seed: int) -> None:
    net = calm(3, seed)
    measure(net, C, 4.0)
    net.run(5.0)
    net.give(net.boxes[B], UndeployRequested("net"))
    net.run(10.0)
    assert all(net.core(node).drifts.of(C) == () for node in net.boxes)
