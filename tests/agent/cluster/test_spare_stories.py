"""How many plans for losses a cluster keeps ready, by the option of its leader: virtual time, fake shells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgepart.agent.options import AgentOptions
from edgepart.planner.errors import UsageError
from tests.agent.cluster.simnet import SimNet, node_id
from tests.agent.cluster.test_cluster_stories import urgent_of, uses

A, B, C, D = map(node_id, range(1, 5))


def kept(count: int, spares: int | None) -> SimNet:
    """A cluster that serves, and has had time to get ready whatever it wants."""
    net = SimNet(count, 31)
    net.start()
    for box in net.boxes.values():
        assert box.core is not None
        planning = replace(box.core.timing.planning, spares=spares)
        box.core.timing = replace(box.core.timing, planning=planning)
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(A)
    net.run(60)
    return net


@pytest.mark.parametrize(("spares", "plans"), [(None, 4), (0, 1), (1, 2), (2, 3), (9, 4)])
def test_as_many_are_kept_as_may_be(spares: int | None, plans: int) -> None:
    net = kept(3, spares)
    assert {len(box.plans) for box in net.boxes.values()} == {plans}


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


def test_a_number_below_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--spares -1"):
        AgentOptions(state=tmp_path, spares=-1)
