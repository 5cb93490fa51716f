"""What people see when boxes come, go, stall and part: whole clusters in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgepart.agent.cluster.leader.replan_policy import PlanningTiming
from edgepart.agent.cluster.state.events import (
    ComputePlan,
    LeaveAnnounced,
    LeaveRequested,
    MessageReceived,
    UndeployRequested,
)
from edgepart.agent.wire.control import ALIVE, FLAPPING, LEAVING, READY, Holding, Version
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.planner.errors import UsageError
from tests.simulation.cluster import SimNet, node_id

A, B, C, D = map(node_id, range(1, 5))


def calm(count: int, seed: int, *, deployed: bool = True) -> SimNet:
    """A cluster that has found itself, and serves on all its boxes."""
    net = SimNet(count, seed)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    if deployed:
        net.deploy(B)
        net.until(lambda: "net" in net.acknowledged and uses(net, *net.boxes), 30)
        net.run(5)
    return net


def uses(net: SimNet, *nodes: str) -> bool:
    return not net.settled_faults() and net.devices(net.boxes[nodes[0]], "net") == set(nodes)


def plans(net: SimNet) -> list[tuple[str, Epoch]]:
    """That any box has loaded."""
    return [key for box in net.boxes.values() for key in box.plans]


def sees(net: SimNet, *nodes: str) -> bool:
    return all(net.boxes[node].members == set(nodes) for node in nodes)


def test_three_boxes_find_each_other_and_agree_on_a_leader() -> None:
    for seed in range(10):
        net = SimNet(3, seed)
        net.start()
        assert net.until(lambda net=net: not net.settled_faults(), 5) < 3  # type: ignore[misc]
        assert len({net.core(node).leader for node in net.boxes}) == 1


def test_a_killed_box_is_out_at_once_and_the_rest_serves() -> None:
    for seed in range(5):
        net = calm(3, seed)
        net.crash(C)
        assert net.until(lambda net=net: sees(net, A, B), 5) < 0.5  # type: ignore[misc]
        assert net.until(lambda net=net: uses(net, A, B), 5) < 1.5  # type: ignore[misc]


def urgent_of(net: SimNet) -> list[ComputePlan]:
    """Orders, from now on, to plan what requests wait for."""
    orders: list[ComputePlan] = []
    before = net.plan_error

    def note(order: ComputePlan) -> tuple[str, bool]:
        if order.urgent:
            orders.append(order)
        return before(order)

    net.plan_error = note
    return orders


def test_a_contingency_plan_spares_the_planning() -> None:
    net = calm(3, 1)
    urgent = urgent_of(net)
    net.crash(C)
    net.until(lambda: uses(net, A, B), 5)
    later = [line for line in net.log if "switches" in line][-1]
    assert not urgent, later


def test_a_killed_leader_is_followed_by_another_one() -> None:
    for seed in range(5):
        net = calm(3, seed)
        leader, term = net.core(B).leader, net.core(B).election.term
        rest = sorted({A, B, C} - {leader})
        net.crash(leader)
        assert net.until(lambda net=net, rest=rest: sees(net, *rest), 5) < 0.5  # type: ignore[misc]
        assert net.until(lambda net=net, rest=rest: uses(net, *rest), 5) < 2  # type: ignore[misc]
        assert net.core(rest[1]).leader == rest[0]
        assert net.core(rest[1]).election.term > term


def test_a_box_without_power_is_out_within_three_seconds() -> None:
    for seed, count in ((1, 2), (2, 3), (3, 4)):
        net = calm(count, seed)
        net.crash(B, power=True)
        rest = [node for node in net.boxes if node != B]
        assert net.until(lambda net=net, rest=rest: sees(net, *rest), 10) < 3  # type: ignore[misc]
        net.until(lambda net=net, rest=rest: uses(net, *rest), 5)  # type: ignore[misc]


def test_a_stall_of_a_second_removes_nobody() -> None:
    for stalled in (A, B):
        net = calm(3, 4)
        before = len(net.log)
        net.stall(stalled, 1.0)
        net.run(10)
        assert [line for line in net.log[before:] if "sees" in line or "follows" in line] == []


def test_a_long_stall_comes_back_without_flapping() -> None:
    net = calm(3, 5)
    net.stall(A, 6.0)
    net.until(lambda: sees(net, B, C), 5)
    net.run(6)
    net.until(lambda: uses(net, A, B, C), 60)
    changes = len(net.log)
    net.run(60)
    assert len(net.log) == changes


def test_both_sides_of_a_split_serve_and_become_one_again() -> None:
    for seed in range(5):
        net = calm(4, seed)
        net.partition([A, B], [C, D])
        net.until(lambda net=net: uses(net, A, B) and uses(net, C, D), 10)  # type: ignore[misc]
        net.run(30)
        net.heal()
        assert net.until(lambda net=net: not net.settled_faults(), 20) < 5  # type: ignore[misc]
        net.until(lambda net=net: uses(net, A, B, C, D), 60)  # type: ignore[misc]


def test_what_is_deployed_on_either_side_of_a_split_is_everybodys() -> None:
    net = calm(4, 6)
    net.partition([A, B], [C, D])
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(A, "left")
    net.deploy(D, "right")
    net.give(net.boxes[C], UndeployRequested("net"))
    net.until(lambda: {"left", "right"} <= net.acknowledged.keys(), 20)
    net.heal()
    net.run(10)
    assert net.settled_faults() == []
    assert [entry.name for entry in net.core(B).deployments.list_live()] == ["left", "right"]
    assert all("net" not in box.active for box in net.boxes.values())


def test_after_a_power_cut_the_deployment_is_there_again() -> None:
    net = calm(3, 7)
    for node in net.boxes:
        net.crash(node, power=True)
    net.run(2)
    net.start()
    net.until(lambda: uses(net, A, B, C), 30)
    assert net.standings["net"].acknowledged


def test_the_leader_restarts_with_an_empty_disk_and_still_no_term_is_used_twice() -> None:
    net = calm(3, 8)
    net.crash(A, wipe=True)
    net.run(0.2)
    net.start(A)
    net.until(lambda: uses(net, A, B, C), 60)
    net.crash(B)
    net.crash(C)
    net.until(lambda: uses(net, A), 10)


def test_a_leader_whose_term_is_outranked_waits_until_it_knows() -> None:
    """A member serves a plan of a later leader, whom this one has not heard of yet: it does not plan in vain."""
    net = calm(3, 1)
    leader = net.core(A).leader
    member = next(node for node in net.boxes if node != leader)
    later = Holding("net", Epoch(net.core(leader).election.term + (1 << 30), 1), READY, True)
    core = net.core(member)
    report = replace(core.follower.report(core.deployments.versions()), holdings=(later,))
    before = net.computed
    net.give(net.boxes[leader], MessageReceived(member, report))
    assert net.computed == before
    net.run(10)  # its next report says otherwise
    assert uses(net, A, B, C)


def test_a_box_that_is_restarted_at_once_runs() -> None:
    net = SimNet(1)
    net.start(A)
    net.start(A)
    net.until(lambda: net.core(A).leader == A, 5)


def test_a_quick_restart_needs_no_other_plan() -> None:
    net = calm(3, 9)
    epoch = net.boxes[A].active["net"]
    net.crash(C)
    net.start(C)
    net.run(0.5)
    net.until(lambda: uses(net, A, B, C), 40)
    assert net.boxes[C].active["net"] >= epoch


def test_a_joiner_is_used_and_takes_over_nothing() -> None:
    net = SimNet(4, 10)
    net.start(B, C, D)
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(B)
    net.until(lambda: uses(net, B, C, D), 30)
    net.start(A)
    took_s = net.until(lambda: uses(net, A, B, C, D), 30)
    assert net.core(A).leader == B
    assert took_s < 10


def test_a_joiner_takes_part_before_a_thorough_search_is_over() -> None:
    for seed in range(4):
        net = SimNet(4, seed)
        searched: list[tuple[float, ComputePlan]] = []

        def search_s(order: ComputePlan, net: SimNet = net, searched: list[Any] = searched) -> float:
            searched.append((net.now, order))
            return 1.0 if order.quick else 10.0

        net.start(B, C, D)
        net.until(lambda net=net: not net.settled_faults(), 10)  # type: ignore[misc]
        net.deploy(B)
        net.until(lambda net=net: uses(net, B, C, D), 30)  # type: ignore[misc]
        net.run(30)
        net.search_s, began = search_s, net.now
        net.start(A)
        took_s = net.until(lambda net=net: uses(net, A, B, C, D), 30)  # type: ignore[misc]
        assert took_s < 5
        net.until(lambda net=net: "a quick search" in net.standings["net"].note, 1)  # type: ignore[misc]
        net.run(60)
        assert net.standings["net"].note == ""
        with_all = [order for _, order in searched if len(order.key.devices) == 4]
        assert [order.quick for order in with_all] == [True, False]
        assert net.settled_faults() == []
        assert searched[0][0] >= began + PlanningTiming().hold_s


def test_joiners_that_come_together_are_searched_for_together() -> None:
    net = SimNet(6, 10)
    boxes = [node_id(number) for number in range(1, 7)]
    net.start(*boxes[:3])
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(B)
    net.until(lambda: uses(net, *boxes[:3]), 30)
    net.run(30)
    asked: list[ComputePlan] = []

    def search_s(order: ComputePlan) -> float:
        asked.append(order)
        return 1.0 if order.quick else 10.0

    net.search_s, net.card_s = search_s, 2.0
    for joiner in boxes[3:]:
        net.start(joiner)
        net.run(0.5)
    took_s = net.until(lambda: bool(asked), 5)
    assert took_s == pytest.approx(2.0 - 0.5 + PlanningTiming().hold_s, abs=0.1)
    net.run(5)
    (compared,) = (order for order in asked if order.current and order.quick)
    assert len(compared.key.devices) == 6


def test_a_joiner_measures_its_links_before_it_gets_a_copy_that_is_not_needed_for_safety() -> None:
    net = SimNet(3, 10)
    net.start(B, C)
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(B)
    net.until(lambda: uses(net, B, C), 30)
    net.card_s = 4.0
    net.start(A)
    net.run(3.5)
    assert A in net.boxes[B].members
    assert not net.boxes[A].disk.models
    net.until(lambda: bool(net.boxes[A].disk.models), 5)


def test_a_copy_that_is_needed_for_safety_waits_for_no_measurement() -> None:
    net = SimNet(2, 10)
    net.start(B)
    net.run(3)
    net.deploy(B)
    net.until(lambda: uses(net, B), 30)
    net.card_s = 20.0
    net.start(A)
    net.until(lambda: bool(net.boxes[A].disk.models), 10)


def test_one_that_leaves_is_out_at_once_and_not_dialled() -> None:
    net = calm(3, 11)
    effects = net.core(C).handle(LeaveRequested(), net.now)
    net.obey(net.boxes[C], effects)
    assert net.until(lambda: net.boxes[A].members == {A, B}, 1) < 0.1
    net.crash(C)
    net.until(lambda: uses(net, A, B), 5)
    net.start(C)
    net.until(lambda: uses(net, A, B, C), 40)


@pytest.mark.parametrize("lost", [A, B, C])  # the leader too
def test_after_a_loss_the_rest_has_a_plan_ready(lost: str) -> None:
    net = calm(3, 21)
    net.run(15)
    loaded, rest = set(plans(net)), sorted({A, B, C} - {lost})
    net.crash(lost)
    net.until(lambda: uses(net, *rest), 1)
    assert {("net", net.boxes[node].active["net"]) for node in rest} <= loaded
    net.run(30)
    assert net.settled_faults() == []


def test_a_leader_that_slept_does_not_wait_for_a_spare_plan_that_others_left_behind() -> None:
    for seed in range(4):
        net = calm(4, seed, deployed=False)
        net.deploy(B)
        net.until(lambda net=net: uses(net, A, B, C, D), 30)  # type: ignore[misc]
        slept = net.core(A).leader
        lost = max({A, B, C, D} - {slept})
        net.run(0.2)
        net.crash(lost)
        net.run(0.4)  # a spare plan is on its way, and is to serve
        net.stall(slept, 4.0)
        rest = sorted({A, B, C, D} - {slept, lost})
        net.until(lambda net=net, rest=rest: sees(net, *rest), 10)  # type: ignore[misc]
        net.run(3.0)
        net.start(lost)
        net.until(lambda net=net: uses(net, A, B, C, D), 60)  # type: ignore[misc]


def test_spare_plans_are_made_anew_for_the_next_plan_and_nothing_piles_up() -> None:
    net = calm(4, 22)
    net.run(30)
    assert all(
        len(box.plans) == 5 for box in net.boxes.values()
    )  # the one that serves, and one for each loss
    net.crash(D)
    net.run(60)
    assert all(len(net.boxes[node].plans) == 4 for node in (A, B, C))
    net.start(D)
    net.run(120)
    assert all(len(box.plans) == 5 for box in net.boxes.values())
    assert uses(net, A, B, C, D)


def test_a_spare_plan_that_cannot_be_loaded_is_done_without() -> None:
    net = calm(3, 23)
    net.load_error = lambda node: "out of memory" if node == C else ""
    net.run(30)
    assert uses(net, A, B, C)
    net.crash(B)
    net.load_error = lambda node: ""
    net.until(lambda: uses(net, A, C), 10)


@pytest.mark.parametrize("leaver", [A, B])  # the leader too
@pytest.mark.parametrize("calm_s", [0.0, 20.0])
def test_whoever_leaves_serves_until_the_others_have_taken_over(leaver: str, calm_s: float) -> None:
    net = calm(3, 24)
    net.run(calm_s)  # until spare plans are ready, or not
    rest = sorted({A, B, C} - {leaver})
    net.give(net.boxes[leaver], LeaveAnnounced())
    net.until(lambda: not net.core(leaver).needed, 5)
    net.run(0.1)
    assert all(net.devices(box, "net") == set(rest) for box in net.boxes.values())
    assert net.boxes[leaver].members == {A, B, C}
    net.obey(net.boxes[leaver], net.core(leaver).handle(LeaveRequested(), net.now))
    net.crash(leaver)
    net.run(30)
    assert uses(net, *rest)
    net.start(leaver)
    net.until(lambda: uses(net, A, B, C), 60)


def test_who_comes_while_one_leaves_knows_it() -> None:
    net = calm(3, 26)
    net.crash(B)
    net.run(1)
    net.give(net.boxes[C], LeaveAnnounced())
    net.start(B)
    net.run(5)
    states = {member.node: member.status for member in net.core(B).membership.members()}
    assert states == {A: ALIVE, B: ALIVE, C: LEAVING}
    net.until(lambda: net.devices(net.boxes[B], "net") == {A, B}, 30)


def test_nobody_waits_where_nobody_stays() -> None:
    net = calm(3, 27)
    for box in net.boxes.values():
        net.give(box, LeaveAnnounced())
    net.run(0.1)
    assert not any(net.core(node).needed for node in net.boxes)


def test_a_device_that_cannot_load_its_program_is_left_out() -> None:
    net = calm(3, 12, deployed=False)
    net.load_error = lambda node: "out of memory" if node == C else ""
    net.deploy(B)
    net.until(lambda: "net" in net.acknowledged and net.devices(net.boxes[C], "net") == {A, B}, 10)
    assert " could not load its part: out of memory; plans do without it" in net.standings["net"].note
    net.load_error = lambda node: ""
    net.until(lambda: uses(net, A, B, C), 90)
    net.run(1)
    assert "could not load" not in net.standings["net"].note


def test_a_device_that_could_not_load_its_program_and_is_gone_is_not_named_any_more() -> None:
    net = calm(3, 12, deployed=False)
    net.load_error = lambda node: "out of memory" if node == C else ""
    net.deploy(B)
    net.until(lambda: "net" in net.standings and "could not load" in net.standings["net"].note, 10)
    net.crash(C)
    net.until(lambda: "could not load" not in net.standings["net"].note, 15)


def test_a_plan_that_fails_for_good_is_said_and_tried_again_only_with_other_devices() -> None:
    def hopeless(order: ComputePlan) -> tuple[str, bool]:
        return ("needs 1.2 GB more", True) if len(order.key.devices) < 3 else ("", False)

    net = SimNet(3, 13)
    net.plan_error = hopeless
    net.start(A, B)
    net.until(lambda: sees(net, A, B), 5)
    net.deploy(B)
    net.until(lambda: "net" in net.standings and net.standings["net"].state == "failed", 10)
    standing = net.standings["net"]
    assert (standing.error, standing.error_kind) == ("needs 1.2 GB more", "Infeasible")
    assert not standing.acknowledged
    computed = net.computed
    net.run(30)
    assert net.computed == computed
    net.start(C)
    net.until(lambda: uses(net, A, B, C), 10)


def test_a_passing_failure_to_plan_is_retried() -> None:
    net = calm(2, 14, deployed=False)
    net.plan_error = lambda order: ("", False) if net.computed > 3 else ("worker died", False)
    net.deploy(B)
    net.until(lambda: uses(net, A, B), 20)


def test_nothing_is_acknowledged_before_two_have_the_model() -> None:
    net = calm(3, 15, deployed=False)
    net.deploy(C, model_bytes=10**9)
    net.until(lambda: "net" in net.acknowledged, 10)
    assert sum(bool(box.disk.models) for box in net.boxes.values()) >= 2
    assert sum(bool(box.disk.deployments) for box in net.boxes.values()) >= 2
    assert sum(bool(box.disk.models) for box in net.boxes.values()) == 2
    net.crash(C, wipe=True)
    net.until(lambda: uses(net, A, B), 5)
    net.until(lambda: bool(net.boxes[B].disk.models), 5)


def test_only_the_devices_that_the_user_chose_compute() -> None:
    net = calm(3, 16, deployed=False)
    net.deploy(A, options=DeployOptions(devices=("box2", "box3")))
    net.until(lambda: uses(net, B, C), 10)
    net.crash(B)
    net.crash(C)
    net.until(lambda: net.standings["net"].state == "waiting", 5)
    assert "box2, box3" in net.standings["net"].text


def test_two_that_cannot_reach_each_other_are_not_used_together() -> None:
    net = calm(3, 17)
    net.cut(B, C)
    net.until(lambda: len(net.devices(net.boxes[A], "net")) == 2, 20)
    net.run(20)
    assert net.devices(net.boxes[A], "net") in ({A, B}, {A, C})
    assert net.boxes[A].members == {A, B, C}
    net.heal()
    net.until(lambda: uses(net, A, B, C), 60)


def test_a_flapping_box_is_done_without_until_it_is_calm() -> None:
    net = calm(3, 18)
    computed = net.computed
    for _ in range(10):
        net.crash(C)
        net.run(3)
        net.start(C)
        net.run(3)
        assert net.devices(net.boxes[A], "net") >= {A, B}
    assert net.computed - computed <= 6
    member = next(m for m in net.core(A).membership.members() if m.node == C)
    assert (member.status, member.note) == (
        FLAPPING,
        "lost 10 times lately: plans do without it for 300 s",
    )
    net.run(200)
    assert uses(net, A, B)
    net.until(lambda: uses(net, A, B, C), 120)


def test_one_whose_own_network_flaps_blames_nobody() -> None:
    net = calm(4, 18)
    for _ in range(5):
        net.partition([A], [B, C, D])
        net.run(12)
        assert sees(net, A) and sees(net, B, C, D)
        assert net.devices(net.boxes[B], "net") == {B, C, D}
        net.heal()
        net.until(lambda: sees(net, A, B, C, D), 10)
    states = {node: [m.status for m in net.core(node).membership.members()] for node in net.boxes}
    assert states.pop(A) == [ALIVE] * 4
    assert all(state == [FLAPPING, ALIVE, ALIVE, ALIVE] for state in states.values())


def test_undeployed_is_gone_everywhere_even_on_a_box_that_was_away() -> None:
    net = calm(3, 19)
    net.crash(C)
    net.until(lambda: uses(net, A, B), 5)
    net.give(net.boxes[B], UndeployRequested("net"))
    net.run(1)
    net.start(C)
    net.run(10)
    assert net.settled_faults() == []
    assert all(not box.plans and not box.active for box in net.boxes.values())
    assert net.core(C).deployments.get("net") is None


def test_an_undeploy_that_cannot_be_met_changes_nothing() -> None:
    net = calm(2, 20)
    with pytest.raises(UsageError, match="no deployment 'nett'"):
        net.give(net.boxes[A], UndeployRequested("nett"))
    net.give(net.boxes[A], UndeployRequested("net", Version(9, A)))  # meant another version
    net.run(5)
    assert uses(net, A, B)
