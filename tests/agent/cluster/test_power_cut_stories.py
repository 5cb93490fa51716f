"""What serves after a power cut of all boxes: the plan that served before, without a search, if its devices come back."""

from __future__ import annotations

import pytest

from edgepart.agent.cluster.leader.kept_plan import SERVED_BEFORE
from edgepart.agent.cluster.state.events import RIGHT, WRONG, TryPlan, UndeployRequested
from edgepart.agent.wire.inference import Epoch
from tests.agent.cluster.simnet import SimNet, node_id
from tests.agent.cluster.test_cluster_stories import calm, uses
from tests.agent.cluster.test_spare_stories import orders_of

A, B, C, D = map(node_id, range(1, 5))


def cut(net: SimNet, *back: str, after_s: float = 3.0) -> None:
    """Cut the power of all boxes, and start these again."""
    for node in net.boxes:
        net.crash(node, power=True)
    net.run(after_s)
    net.start(*back)


def latest(net: SimNet) -> Epoch:
    return max(box.active["net"] for box in net.boxes.values() if "net" in box.active)


@pytest.mark.parametrize("seed", range(5))
def test_the_plan_that_served_serves_first_and_without_a_search(seed: int) -> None:
    net = calm(4, seed)
    before, epoch = (
        {node: box.plans[("net", box.active["net"])].plan for node, box in net.boxes.items()},
        latest(net),
    )
    orders = orders_of(net)
    cut(net)
    assert net.until(lambda: net.serves(), 10) < 5
    assert not [order for order in orders if not order.current and order.urgent]
    assert {node: box.plans[("net", box.active["net"])].plan for node, box in net.boxes.items()} == before
    assert latest(net) > epoch and net.standings["net"].note == SERVED_BEFORE
    net.run(60)
    assert net.standings["net"].note == "" and [o for o in orders if o.current and not o.quick], (
        "it was compared"
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_box_that_starts_a_moment_later_is_waited_for(seed: int) -> None:
    net = calm(4, seed)
    orders = orders_of(net)
    cut(net, A, B, C)
    net.run(1.0)
    assert not net.serves() and not orders
    net.start(D)
    net.until(lambda: uses(net, A, B, C, D), 5)
    assert not [order for order in orders if order.urgent]


def test_without_a_box_that_does_not_come_back_one_device_serves_until_a_search_is_over() -> None:
    net = calm(4, 6)
    orders = orders_of(net)
    cut(net, A, B, C)
    told: list[str] = []
    net.until(lambda: told.append(net.standings["net"].text) or net.serves(), 10)  # type: ignore[func-returns-value]
    assert "box4 served it before, and may come back" in told
    assert orders[0].awaited and len(net.devices(net.boxes[A], "net")) == 1
    net.until(lambda: uses(net, A, B, C), 30)


def test_a_box_that_comes_back_late_is_planned_with_as_before_instead_of_a_stopgap() -> None:
    net = calm(4, 7)
    net.search_s = lambda order: 0.2 if order.awaited or order.key.alone else 20.0
    orders = orders_of(net)
    cut(net, A, B, C)
    net.until(lambda: net.serves(), 10)
    net.start(D)
    net.until(lambda: uses(net, A, B, C, D), 10)
    assert net.standings["net"].note == SERVED_BEFORE and all(
        o.awaited or o.key.alone or o.current for o in orders
    )


def test_a_kept_plan_that_answers_wrongly_now_is_dropped_as_soon_as_it_has_served() -> None:
    net = calm(4, 8)
    tried: list[TryPlan] = []
    net.verdict = lambda order: (tried.append(order) or WRONG, "b") if not tried else (RIGHT, "")  # type: ignore
    cut(net)
    net.until(lambda: net.serves(), 10)
    served = latest(net)
    net.until(lambda: net.serves() and latest(net) > served, 30)
    assert tried[0].epoch == served


def test_a_device_that_cannot_load_the_kept_plan_is_planned_with_all_the_same() -> None:
    net = calm(3, 9)
    failing = iter([f"it is no plan on {node}" for node in net.boxes])
    net.load_error = lambda node: next(failing, "")
    cut(net)
    net.until(lambda: net.serves(), 20)
    assert "the plan that served before is not used: box" in net.standings["net"].note
    net.until(lambda: uses(net, A, B, C), 20)


def test_a_plan_of_an_earlier_version_or_of_a_name_that_is_gone_is_not_kept() -> None:
    net = calm(3, 10)
    kept = {node: dict(box.disk.plans) for node, box in net.boxes.items()}
    assert all(plans.keys() == {"net"} for plans in kept.values())
    net.give(net.boxes[A], UndeployRequested("net"))
    net.run(2)
    assert not any(box.disk.plans for box in net.boxes.values())
    net.deploy(A)
    net.until(lambda: uses(net, A, B, C), 20)
    net.run(1)
    for node, box in net.boxes.items():
        box.disk.plans = kept[node]  # as if none of the disks had been written since
    orders = orders_of(net)
    cut(net)
    net.until(lambda: net.serves(), 20)
    assert [order for order in orders if order.urgent]
