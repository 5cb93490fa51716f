"""How many plans for losses a cluster keeps ready, by the option of its leader: virtual time, fake shells."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest

from edgepart.agent.cluster.state.events import ComputePlan, PlanKey
from edgepart.agent.options import AgentOptions
from edgepart.agent.wire.inference import NO_EPOCH, DeployOptions
from edgepart.planner.errors import UsageError
from tests.agent.cluster.simnet import SimNet, node_id
from tests.agent.cluster.test_cluster_stories import urgent_of, uses

A, B, C, D = map(node_id, range(1, 5))
EARLIER = "0.1.0+traces.leaves.signed-drains.starves.versions"
"""The version of a member that is not told which plans serve only after a loss."""


def kept(count: int, spares: int | None, earlier: str = "") -> SimNet:
    """A cluster that serves, and has had time to get ready whatever it wants. The box `earlier` is of an older release."""
    net = SimNet(count, 31)
    if earlier:
        net.versions[earlier] = EARLIER
    net.start()
    for box in net.boxes.values():
        assert box.core is not None
        leadership = box.core.leadership
        planning = replace(leadership.timing.planning, spares=spares)
        leadership.timing = replace(leadership.timing, planning=planning)
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(A)
    net.run(60)
    return net


@pytest.mark.parametrize(("spares", "plans"), [(None, 4), (0, 1), (1, 2), (2, 3), (9, 4)])
def test_as_many_are_kept_as_may_be(spares: int | None, plans: int) -> None:
    net = kept(3, spares)
    assert {len(box.plans) for box in net.boxes.values()} == {plans}


@pytest.mark.parametrize("earlier", ["", C])
def test_members_are_told_which_plans_can_be_loaded_after_others(earlier: str) -> None:
    net = kept(3, None, earlier)
    for node, box in net.boxes.items():
        spare = {order.epoch for order in box.plans.values() if order.spare}
        others = {order.epoch for order in box.plans.values()} - spare
        assert box.active["net"] in others and len(box.plans) == 4
        assert spare == set() if node == earlier else others == {box.active["net"]}


@pytest.mark.parametrize("spares", [None, 1, 0])
def test_members_are_told_which_losses_are_prepared(spares: int | None) -> None:
    net = kept(3, spares)
    name = {node: name for order in net.boxes[A].plans.values() for name, node in order.names}
    told = [box.core.standings["net"] for box in net.boxes.values() if box.core is not None]
    assert len(told) == 3 and len(set(told)) == 1
    covered = told[0].covered
    assert set(told[0].devices) == set(name.values())
    assert len(covered) == (3 if spares is None else spares)
    victim = next((node for node in (C, B) if name[node] in covered), None)
    if victim is not None:
        urgent = urgent_of(net)
        net.crash(victim)
        net.until(lambda: uses(net, *({A, B, C} - {victim})), 10)
        assert not urgent, "the loss of a device that is named was planned for before"


def test_without_any_a_loss_is_planned_for_when_it_has_come() -> None:
    net = kept(3, 0)
    before = net.computed
    net.crash(C)
    net.until(lambda: uses(net, A, B), 10)
    assert net.computed > before


def test_the_plan_that_served_before_does_for_the_loss_of_who_has_just_come() -> None:
    for seed in range(5):
        net = kept(3, None)
        net.crash(C)
        net.until(lambda net=net: uses(net, A, B), 10)  # type: ignore[misc]
        net.run(90)  # calm for so long that it does not count as one that comes and goes
        net.start(C)
        net.until(lambda net=net: uses(net, A, B, C), 120)  # type: ignore[misc]
        urgent = urgent_of(net)
        net.run(1.0 + 0.1 * seed)
        net.crash(C)
        assert net.until(lambda net=net: uses(net, A, B), 10) < 1.0  # type: ignore[misc]
        assert not urgent


def test_after_a_loss_the_next_one_is_seen_to_before_a_better_plan() -> None:
    net = kept(4, None)
    urgent = urgent_of(net)
    net.crash(D)
    net.until(lambda: uses(net, A, B, C), 10)
    net.run(4)
    net.crash(C)
    assert net.until(lambda: uses(net, A, B), 10) < 1.0
    assert not urgent


def test_a_box_that_joins_is_searched_with_before_more_plans_for_losses_are_made() -> None:
    for seed in range(3):
        net = SimNet(4, seed)
        for node in (A, B, C):
            net.start(node)
        net.until(lambda net=net: not net.settled_faults(), 10)  # type: ignore[misc]
        orders: list[ComputePlan] = []

        def search_s(order: ComputePlan, orders: list[ComputePlan] = orders) -> float:
            orders.append(order)
            return 0.1 if order.key.alone else 5.0

        net.search_s = search_s
        net.deploy(B)
        net.until(lambda net=net: uses(net, A, B, C), 30)  # type: ignore[misc]
        net.until(lambda net=net: len(net.standings["net"].covered) == 3, 60)  # type: ignore[misc]
        net.start(D)
        net.until(lambda net=net: uses(net, A, B, C, D), 120)  # type: ignore[misc]
        first = next(order for order in orders if D in {node for node, _, _ in order.key.devices})
        assert first.quick and first.current


def test_a_number_below_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--spares -1"):
        AgentOptions(state=tmp_path, spares=-1)


def orders_of(net: SimNet) -> list[ComputePlan]:
    """Every order to compute a plan from now on."""
    orders: list[ComputePlan] = []

    def note(order: ComputePlan) -> tuple[str, bool]:
        orders.append(order)
        return "", False

    net.plan_error = note
    return orders


def covered(net: SimNet) -> set[str]:
    """The devices, by name, for whose loss members are told that another plan is loaded."""
    return set(net.standings["net"].covered)


def newly_serving(count: int, seed: int) -> tuple[SimNet, list[ComputePlan]]:
    """A cluster at the moment when a plan on all its boxes begins to serve, and the orders to compute plans so far and from
    then on."""
    net = SimNet(count, seed)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    orders = orders_of(net)
    net.deploy(A)
    net.until(lambda: len(net.devices(net.boxes[A], "net")) == count, 20)
    return net, orders


def test_two_plans_on_one_device_each_cover_every_loss_before_plans_are_made_for_each() -> None:
    for seed in range(5):
        net, orders = newly_serving(4, seed)
        net.until(lambda net=net: len(covered(net)) == 4, 10)  # type: ignore[misc]
        assert [order.key.alone for order in orders if not order.urgent][:2] == [True, True]
        assert len([order for order in orders if order.key.alone]) == 2


@pytest.mark.parametrize("loss", ["kill", "power"])
def test_a_loss_soon_after_the_first_plan_serves_is_taken_over_without_a_search(loss: str) -> None:
    for seed, victim in product(range(3), (A, B, C, D)):
        net, orders = newly_serving(4, seed)
        net.until(lambda net=net: len(covered(net)) == 4, 10)  # type: ignore[misc]
        before = len(orders)
        net.crash(victim, power=loss == "power")
        survivors = {A, B, C, D} - {victim}
        took_s = net.until(lambda net=net, some=survivors: answers_on(net, some), 10)  # type: ignore[misc]
        assert not any(order.urgent for order in orders[before:])
        assert took_s < (1.0 if loss == "kill" else 4.0)  # Silence is noticed after about 2 s.
        net.until(lambda net=net, some=survivors: uses(net, *sorted(some)), 60)  # type: ignore[misc]


def answers_on(net: SimNet, some: set[str]) -> bool:
    """Whether each of these boxes starts requests on a plan that needs none but them."""
    return all(
        net.devices(net.boxes[node], "net") and net.devices(net.boxes[node], "net") <= some for node in some
    )


def test_refuges_are_done_without_once_a_plan_is_loaded_for_each_loss() -> None:
    net = kept(4, None)
    assert {len(order.names) for order in net.boxes[A].plans.values()} == {3, 4}
    assert len(covered(net)) == 4


def test_where_plans_for_losses_are_limited_there_are_no_refuges() -> None:
    net = kept(4, 1)
    assert sorted(len(order.names) for order in net.boxes[A].plans.values()) == [3, 4]
    assert len(covered(net)) == 1


def test_where_no_device_has_room_alone_plans_for_losses_are_made_all_the_same() -> None:
    net = SimNet(4, 5)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    net.plan_error = lambda order: ("no memory", True) if order.key.alone else ("", False)
    net.deploy(A)
    net.run(60)
    assert len(covered(net)) == 4
    assert {len(order.names) for order in net.boxes[A].plans.values()} == {3, 4}


@pytest.mark.parametrize("final", [False, True])
def test_a_refuge_whose_planning_failed_is_tried_again_after_longer_and_longer_if_that_may_pass(
    final: bool,
) -> None:
    """No plan for a single loss is found either, which refuges would be done without."""
    net = SimNet(4, 5)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    tried: dict[PlanKey, list[float]] = {}

    def note(order: ComputePlan) -> tuple[str, bool]:
        if not order.key.alone:
            return ("no memory", True) if len(order.key.devices) < 4 else ("", False)
        times = tried.setdefault(order.key, [])
        times.append(net.now)
        return "the planning process ended" if len(times) < 4 else "", final

    net.plan_error = note
    net.deploy(A)
    net.run(60)
    if final:
        assert {len(times) for times in tried.values()} == {1} and not covered(net)
        return
    assert len(covered(net)) == 4
    for times in tried.values():
        waits = [after - before for before, after in pairwise(times)]
        assert all(wait >= least for wait, least in zip(waits, (1.0, 2.0, 4.0), strict=False))
    assert max(len(times) for times in tried.values()) == 4


def test_two_losses_at_once_wait_for_a_plan_on_one_device_only_and_a_better_one_follows() -> None:
    for seed in range(5):
        net = kept(4, 0)
        orders = orders_of(net)
        net.crash(C)
        net.crash(D)
        net.until(lambda net=net: answers_on(net, {A, B}), 10)  # type: ignore[misc]
        urgent = [order for order in orders if order.urgent]
        assert urgent and all(order.awaited and order.quick for order in urgent), seed
        net.until(lambda net=net: uses(net, A, B), 60)  # type: ignore[misc]


@pytest.mark.parametrize("mirrors", [False, True])
def test_where_states_are_mirrored_plans_for_losses_are_made_with_the_one_that_serves(mirrors: bool) -> None:
    net = SimNet(3, 7)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    orders: list[ComputePlan] = []

    def search_s(order: ComputePlan) -> float:
        orders.append(order)
        return 0.1

    net.search_s = search_s
    net.deploy(A, options=DeployOptions(mirrors=mirrors))
    net.run(60)
    serving = {box.plans["net", box.active["net"]].plan for box in net.boxes.values()}
    assert len(serving) == 1
    for_losses = [order for order in orders if 0 < len(order.key.devices) < 3 and not order.urgent]
    assert for_losses and all((order.key.heir_of != NO_EPOCH) == mirrors for order in for_losses)
    assert {order.serving for order in for_losses} == (serving if mirrors else {b""})


@pytest.mark.parametrize("text", [False, True])
def test_what_runs_the_model_itself_after_a_loss_is_tried_where_a_text_would_wait(text: bool) -> None:
    net = SimNet(2, 7)
    net.start()
    net.alone_is_right = True
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(A, options=DeployOptions(text=text))
    net.run(60)
    tried = {order.epoch for _, order in net.tried}
    epochs = {epoch for box in net.boxes.values() for _, epoch in box.plans}
    assert len(epochs) == 3 and tried <= epochs
    assert len(tried) == (3 if text else 1)


def test_where_states_are_mirrored_plans_of_before_do_for_losses_only_until_others_are_made() -> None:
    net = SimNet(4, 11)
    for node in (A, B, C):
        net.start(node)
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(A, options=DeployOptions(mirrors=True))
    net.until(lambda: uses(net, A, B, C), 60)
    net.run(30)
    net.start(D)
    net.until(lambda: uses(net, A, B, C, D), 120)
    net.run(60)
    controller = net.core(net.core(A).leader).leadership.controller
    assert controller is not None
    plans = controller._cutovers["net"].plans
    assert plans.active is not None and len(plans.spares) == 4
    made_for = [spare.made_for for spare in plans.spares]
    assert all(key is not None and key.heir_of == plans.active.epoch for key in made_for)
