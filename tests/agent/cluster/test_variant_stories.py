"""What happens to shapes that requests bring: whole clusters in virtual time, fake gateways that want bindings."""

from __future__ import annotations

import random

from edgepart.agent.cluster.leader.variants import MAX_WISHES
from edgepart.agent.cluster.state.bindings import Shapes
from edgepart.agent.cluster.state.events import BindingWanted, ComputePlan, UndeployRequested
from edgepart.agent.wire.control import LOADING
from edgepart.agent.wire.inference import DeployOptions
from tests.simulation.cluster import SimNet, node_id

A, B, C, D = map(node_id, range(1, 5))


def calm(count: int = 3, seed: int = 0, bindings: int = 3) -> SimNet:
    """A cluster that serves one deployment."""
    net = SimNet(count, seed)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(B, options=DeployOptions(bindings=bindings, shapes={"k": (1,)}))
    net.until(lambda: "net" in net.acknowledged and net.serves(), 30)
    net.run(5)
    return net


def rows(count: int) -> Shapes:
    return {"x": (count, 4)}


def serve(net: SimNet, *names: str) -> bool:
    """Whether these variants, and no others, serve on every running box."""
    return all(net.variants(node) == set(names) for node in net.running)


def orders_of(net: SimNet) -> list[ComputePlan]:
    """Every order to plan a variant from now on."""
    orders: list[ComputePlan] = []
    before = net.plan_error

    def note(order: ComputePlan) -> tuple[str, bool]:
        if "@" in order.key.deployment:
            orders.append(order)
        return before(order)

    net.plan_error = note
    return orders


def test_a_shape_is_planned_once_in_haste_and_every_gateway_may_use_it() -> None:
    for seed in range(5):
        net = calm(seed=seed)
        orders = orders_of(net)
        name = net.want(C, rows(2), 30)
        assert net.want(B, rows(2), 30) == name
        assert net.until(lambda net=net, name=name: serve(net, name), 5) < 2.5  # type: ignore[misc]
        assert [(order.urgent, order.quick) for order in orders] == [(True, True)]
        assert orders[0].deployment.options.shapes == {"k": (1,), "x": (2, 4)}  # the user's others stay
        net.run(25)  # then it is compared with a thorough plan, and prepared for losses
        assert not any(order.urgent for order in orders[1:])
        assert serve(net, name)
        assert [entry.name for entry in net.core(B).deployments] == ["net"]


def test_a_shape_that_the_leader_itself_is_asked_for_is_planned_at_once() -> None:
    for seed in range(3):
        net = calm(seed=seed)
        orders = orders_of(net)
        net.want(net.core(A).leader, rows(2), 30)
        net.run(0.001)  # No message of another member has come by then.
        assert [order.awaited for order in orders] == [True]


def test_a_new_shape_is_on_one_device_first_and_one_that_lasts_gets_a_better_plan() -> None:
    for seed in range(3):
        net = calm(seed=seed)
        orders = orders_of(net)
        name = net.want(C, rows(2), 60)
        net.until(lambda net=net, name=name: serve(net, name), 5)  # type: ignore[misc]
        assert [order.awaited for order in orders] == [True]
        assert len(net.devices(net.boxes[C], name)) == 1
        before = net.boxes[C].active[name]
        net.until(lambda net=net, name=name: net.devices(net.boxes[C], name) == {A, B, C}, 30)  # type: ignore[misc]
        assert not any(
            order.urgent or order.quick for order in orders if order.current
        )  # a thorough search, later
        assert net.boxes[C].active[name] > before


def test_nothing_is_made_before_the_deployment_itself_serves() -> None:
    net = SimNet(3, 1)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    net.plan_error = lambda order: ("no memory", True)
    net.deploy(B)
    net.want(B, rows(2), 10)
    orders = orders_of(net)
    net.run(15)
    assert orders == []


def test_new_shapes_are_made_one_at_a_time_in_the_order_they_came() -> None:
    net = calm(bindings=8)
    orders = orders_of(net)
    names = []
    for count in range(2, 8):
        names.append(net.want(C, rows(count), 60))
        net.run(0.01)
    net.until(lambda: serve(net, *names), 20)
    made = [order.key.deployment for order in orders if order.urgent]
    assert made == names
    for number, name in enumerate(names[1:], 1):  # each was begun when the one before it served
        assert net.boxes[A].active[name] > net.boxes[A].active[names[number - 1]]


def test_the_one_that_was_not_wanted_for_longest_makes_room() -> None:
    net = calm(bindings=2)
    first = net.want(B, rows(2), 5)
    second = net.want(B, rows(3), 100)
    net.until(lambda: serve(net, first, second), 10)
    net.run(10)
    third = net.want(C, rows(4), 100)
    net.until(lambda: serve(net, second, third), 10)
    assert first in {name for name, _ in net.boxes[A].plans}
    net.run(60)  # what was given up is kept a while for the requests that run on it, then dropped
    assert serve(net, second, third)
    for box in net.boxes.values():
        assert {name for name, _ in box.plans} == {"net", second, third}


def test_more_shapes_than_places_take_turns_and_each_gets_its_turn() -> None:
    net = calm(bindings=1)
    wanted = {count: net.want(C, rows(count), 1000) for count in (2, 3)}
    seen: list[str] = []
    for _ in range(200):
        net.run(0.1)
        seen += [name for name in net.variants(C) if seen[-1:] != [name]]
        assert len(net.variants(C)) <= 1
    assert set(seen) == set(wanted.values())
    assert len(seen) >= 6


def test_what_cannot_be_planned_is_refused_once_and_disturbs_nobody() -> None:
    net = calm()
    net.plan_error = lambda order: (
        ("Reshape does not fit", True) if order.deployment.options.shapes.get("x") == (3, 4) else ("", False)
    )
    orders = orders_of(net)
    serving = dict(net.boxes[A].active)
    bad = net.want(C, rows(3), 40)
    good = net.want(B, rows(2), 40)
    net.until(lambda: serve(net, good), 10)
    net.run(20)
    told = {node for node, standing in net.refused if standing.deployment == bad}
    assert told == set(net.boxes)
    assert all(s.error == "Reshape does not fit" for _, s in net.refused)
    assert len([order for order in orders if order.key.deployment == bad]) == 1
    assert net.boxes[A].active["net"] == serving["net"]
    before = len(net.refused)
    net.run(5)
    assert {node for node, _ in net.refused[before:]} == {C}  # asked again, told again
    net.run(30)  # no room is no reason for ever: the devices may have changed
    assert len([order for order in orders if order.key.deployment == bad]) == 2


def test_one_that_no_device_can_load_is_refused() -> None:
    net = calm()
    broken = net.want(B, rows(9), 30)
    net.load_error = lambda node: "bad graph" if net.computed else ""
    net.until(lambda: any(s.deployment == broken for _, s in net.refused), 20)
    standing = next(s for _, s in net.refused if s.deployment == broken)
    assert "bad graph" in standing.error and standing.error_kind == "Unavailable"
    net.load_error = lambda node: ""
    other = net.want(B, rows(2), 30)
    net.until(lambda: serve(net, other), 20)


def test_one_that_does_not_get_ready_makes_room_after_a_while() -> None:
    net = calm()
    net.plan_error = lambda order: (
        ("worker died", False) if order.deployment.options.shapes.get("x") == (3, 4) else ("", False)
    )
    slow = net.want(C, rows(3), 200)
    net.run(0.5)
    other = net.want(B, rows(2), 200)
    assert 50 < net.until(lambda: serve(net, other), 100) < 80
    standing = next(s for _, s in net.refused if s.deployment == slow)
    assert "60 s" in standing.error and "worker died" in standing.error


def test_variants_outlive_their_leader_and_what_waited_is_made_by_the_next() -> None:
    for seed in range(3):
        net = calm(4, seed)
        old = net.want(C, rows(2), 100)
        net.until(lambda net=net, old=old: serve(net, old), 10)  # type: ignore[misc]
        net.run(15)
        epoch = net.boxes[B].active[old]
        waiting = net.want(C, rows(5), 100)
        net.crash(A)
        assert old in net.variants(B)  # it serves meanwhile
        net.until(lambda net=net, n=(old, waiting): serve(net, *n), 20)  # type: ignore[misc]
        net.run(5)
        assert net.core(B).leader != A
        assert net.boxes[C].active[old] > epoch  # without the dead device
        assert net.devices(net.boxes[C], old) == {B, C, D}


def test_undeployed_takes_its_variants_with_it() -> None:
    net = calm()
    name = net.want(B, rows(2), 60)
    net.until(lambda: serve(net, name), 10)
    net.crash(C)
    net.run(1)
    net.give(net.boxes[B], UndeployRequested("net"))
    net.run(1)
    net.start(C)
    net.run(10)
    assert all(not box.plans and not box.active for box in net.boxes.values())


def test_after_deploying_again_the_old_variants_serve_until_the_new_plan_does() -> None:
    net = calm()
    old = net.want(B, rows(2), 100)
    net.until(lambda: serve(net, old), 10)
    before = net.boxes[B].active["net"]
    net.deploy(B, options=DeployOptions(bindings=3))
    while net.boxes[B].active["net"] == before:
        assert old in net.variants(B)
        net.run(0.001)
    net.until(lambda: all(old not in net.variants(n) and len(net.variants(n)) == 1 for n in net.running), 20)
    net.run(60)
    assert all(old not in {name for name, _ in box.plans} for box in net.boxes.values())


def test_a_split_and_its_healing_leave_no_variant_behind() -> None:
    for seed in range(1):
        net = calm(4, seed)
        both = net.want(B, rows(2), 200)
        net.until(lambda net=net, both=both: serve(net, both), 10)  # type: ignore[misc]
        net.partition([A, B], [C, D])
        net.until(lambda net=net: not net.settled_faults(), 10)  # type: ignore[misc]
        left, right = net.want(A, rows(3), 200), net.want(C, rows(4), 20)
        net.until(lambda net=net, n=left: n in net.variants(B), 20)  # type: ignore[misc]
        net.until(lambda net=net, n=right: n in net.variants(D), 20)  # type: ignore[misc]
        net.run(20)
        net.heal()
        net.until(lambda net=net: not net.settled_faults(), 20)  # type: ignore[misc]
        net.run(60)
        kept = net.variants(A)
        assert {both, left} <= kept
        for box in net.boxes.values():
            assert {name for name, _ in box.plans} == {"net", *kept}
            assert set(box.active) == {"net", *kept}


def test_after_a_power_cut_shapes_are_planned_when_they_are_wanted_again() -> None:
    net = calm()
    net.want(B, rows(2), 20)
    net.run(20)
    for node in net.boxes:
        net.crash(node, power=True)
    net.start()
    net.until(lambda: net.serves(), 30)
    net.run(10)
    assert net.variants(B) == set()
    again = net.want(B, rows(2), 20)
    net.until(lambda: serve(net, again), 10)


def test_a_new_shape_in_every_request_is_bounded() -> None:
    net = calm(bindings=3)
    orders = orders_of(net)
    draw, began = random.Random(1), net.now
    version = net.core(C).deployments.versions()[0][1]
    for number in range(400):
        shapes = rows(2 + number)
        net.at(
            began + number * 0.05,
            lambda s=shapes: net.give(net.boxes[C], BindingWanted("net", version, s)),
        )
    pending = 0
    for _ in range(200):
        net.run(0.1 * draw.uniform(0.5, 1.5))
        held = {h.deployment: h.state for h in net.core(A).follower.report(()).holdings}
        pending = max(pending, sum("@" in name and state == LOADING for name, state in held.items()))
        assert len(net.variants(C)) <= 3
        assert net.serves()
    assert pending <= 1
    took_s = net.now - began
    making_s = sum(order.urgent for order in orders) * 0.3  # about what the fake planner takes for each
    assert making_s < 0.6 * took_s
    assert not any(not order.urgent for order in orders)  # none lasts long enough to be planned thoroughly
    assert any(f"{MAX_WISHES} other new shapes" in s.error for node, s in net.refused if node == C)
    net.run(60)
    assert net.serves()


def test_shapes_are_made_although_messages_get_lost() -> None:
    net = SimNet(3, 5, lossy=0.05)
    net.start()
    net.until(lambda: not net.settled_faults(), 60)
    net.deploy(B)
    net.until(lambda: "net" in net.acknowledged and net.serves(), 60)
    names = [net.want(C, rows(count), 300) for count in (2, 3)]
    net.until(lambda: serve(net, *names), 120)
