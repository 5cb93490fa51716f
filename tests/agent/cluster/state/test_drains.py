"""Draining and removing: the map, and whole clusters in virtual time."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis.strategies import builds, integers, lists, permutations, sampled_from

from edgepart.agent.cluster.state.drains import DrainMap, choose_winner, from_json, to_json
from edgepart.agent.wire.control import DRAIN_STATES, DRAINED, IN, LEFT, REMOVED, REMOVING, Drain, Version
from edgepart.planner.errors import UsageError
from tests.agent.cluster.drainnet import VERSION, DrainNet
from tests.agent.cluster.simnet import MODEL, node_id

A, B, C, D = map(node_id, range(1, 5))

ENTRIES = lists(
    builds(
        Drain,
        sampled_from([A, B, C]),
        sampled_from(["x", "y"]),
        sampled_from(DRAIN_STATES),
        builds(Version, integers(1, 4), sampled_from([A, B])),
    ),
    max_size=8,
)


@given(ENTRIES.flatmap(lambda entries: permutations(entries).map(lambda other: (entries, other))))
def test_maps_merge_to_the_same_in_any_order_and_the_newest_wins_of_which_removed(
    pair: tuple[list[Drain], list[Drain]],
) -> None:
    one, two = DrainMap(pair[0]), DrainMap()
    for entry in pair[1]:
        two.merge([entry])
    assert list(one) == list(two)
    assert two.merge(pair[0]) == ()
    for node in {entry.node for entry in pair[0]}:
        about = [entry for entry in pair[0] if entry.node == node]
        newest = [entry for entry in about if entry.version == max(each.version for each in about)]
        assert (one.state(node) == REMOVED) == any(entry.state == REMOVED for entry in newest)
    assert from_json(to_json(one)) == tuple(one)


@given(ENTRIES)
def test_of_two_entries_one_wins_whatever_the_order(entries: list[Drain]) -> None:
    for a in entries:
        for b in (other for other in entries if other.node == a.node):
            assert choose_winner(a, b) == choose_winner(b, a)


@pytest.mark.parametrize(
    "document", [[], {}, {"format": 1}, {"format": 1, "drains": [{}]}, {"format": 1, "drains": 5}]
)
def test_what_is_no_map_is_named(document: object) -> None:
    with pytest.raises(UsageError, match=r"drains\.json"):
        from_json(document)


def calm(count: int, seed: int, *, model_bytes: int = 1000) -> DrainNet:
    net = DrainNet(count, seed)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(B, model_bytes=model_bytes)
    net.until(lambda: "net" in net.acknowledged and not net.settled_faults(), 30)
    net.run(5)
    return net


def computing(net: DrainNet, asked: str = A) -> set[str]:
    return net.devices(net.boxes[asked], "net")


def test_a_leader_that_missed_a_wish_learns_it() -> None:
    net = calm(3, 1)
    asked = next(node for node in net.boxes if node != net.core(node).leader)
    net.network.lossy = 1.0  # nothing arrives
    net.wish(asked, C, DRAINED)
    net.network.lossy = 0.0
    assert net.states(C) == {IN, DRAINED}
    net.run(12)  # as often as deployments are told again, twice
    assert net.states(C) == {DRAINED}
    assert computing(net) == {A, B}


@pytest.mark.parametrize("drained", [A, C])
@pytest.mark.parametrize("asked", [A, B, C])
def test_plans_are_made_without_a_drained_box_which_stays_and_comes_back(drained: str, asked: str) -> None:
    net = calm(3, 1)
    net.wish(asked, drained, DRAINED)
    net.until(lambda: all(net.is_out(drained, node) for node in net.boxes), 30)
    assert computing(net) == {A, B, C} - {drained}
    assert net.settled_faults() == []
    net.run(60)
    assert computing(net) == {A, B, C} - {drained}
    net.wish(asked, drained, IN)
    net.until(lambda: computing(net) == {A, B, C}, 60)


def test_a_drain_leaves_no_moment_without_a_plan() -> None:
    """Make before break: whatever serves, its devices are all there."""
    for seed in range(5):
        net = calm(4, seed)
        net.wish(A, D, DRAINED)
        while not net.is_out(D, A):
            net.run(0.05)
            assert all(net.devices(net.boxes[node], "net") for node in net.boxes)


def test_a_drain_outlasts_restarts_of_all() -> None:
    net = calm(3, 2)
    net.wish(B, C, DRAINED)
    net.until(lambda: net.is_out(C, B), 30)
    for node in net.boxes:
        net.crash(node, power=True)
    net.start()
    net.until(lambda: not net.settled_faults() and net.is_out(C, A), 60)
    net.until(lambda: computing(net) == {A, B}, 30)


def test_what_only_few_hold_is_copied_before_a_drain_is_done() -> None:
    """A large model lies on two boxes; one of them is drained."""
    net = calm(4, 3, model_bytes=10**9)
    holders = [node for node in net.boxes if MODEL in net.boxes[node].disk.models]
    assert len(holders) == 2
    drained = holders[-1]
    net.wish(A, drained, DRAINED)
    net.until(lambda: net.is_out(drained, A), 30)
    safe = [node for node in net.boxes if node != drained and MODEL in net.boxes[node].disk.models]
    assert len(safe) == 2


def test_where_nobody_else_is_left_a_drained_box_serves() -> None:
    net = calm(2, 4)
    net.wish(A, B, DRAINED)
    net.until(lambda: net.is_out(B, A), 30)
    net.crash(A)
    net.until(lambda: net.devices(net.boxes[B], "net") == {B}, 30)


def test_the_last_one_cannot_be_drained_or_removed() -> None:
    net = calm(2, 5)
    net.wish(A, B, DRAINED)
    net.run(1)
    for state in (DRAINED, REMOVING):
        with pytest.raises(UsageError, match="the only device"):
            net.wish(B, A, state)
    assert net.states(A) == {IN}


def test_a_drain_with_no_plan_without_the_box_says_why_and_it_goes_on_serving() -> None:
    net = calm(3, 6)
    net.plan_error = lambda order: ("it lacks 7 bytes", True) if len(order.key.devices) < 3 else ("", False)
    net.wish(A, C, DRAINED)
    for _ in range(3):  # A spare plan without it may be there; if so, it is lost with a box.
        net.run(10)
    if not net.is_out(C, A):
        assert "lacks 7 bytes" in net.core(A).draining.standings[C].text
        assert C in computing(net)
    net.plan_error = lambda order: ("", False)
    net.wish(A, C, IN)
    net.until(lambda: computing(net) == {A, B, C}, 60)


@pytest.mark.parametrize("removed", [A, C])
@pytest.mark.parametrize("asked", [A, B, C])
def test_a_removed_box_hands_over_stops_and_is_forgotten(removed: str, asked: str) -> None:
    net = calm(3, 7)
    rest = {A, B, C} - {removed}
    net.wish(asked, removed, REMOVING)
    net.until(lambda: net.boxes[removed].core is None, 30)
    assert net.discharged == [removed]
    net.until(lambda: all(net.boxes[node].members == rest for node in rest), 5)
    net.until(lambda: not net.settled_faults(), 30)
    assert computing(net, min(rest)) == rest
    net.run(700)
    assert all(removed not in net.core(node).membership.peers for node in rest), "a ghost"


def test_a_removed_box_that_hangs_is_put_out_all_the_same() -> None:
    net = calm(3, 8)
    net.wish(A, C, REMOVING)
    net.until(lambda: net.states(C) >= {REMOVED}, 30)
    net.stall(C, 1000.0)
    net.until(lambda: all(net.boxes[node].members == {A, B} for node in (A, B)), 30)


def test_a_box_that_is_gone_is_removed_at_once_and_learns_it_when_it_comes_back() -> None:
    net = calm(3, 9)
    net.crash(C, power=True)
    net.until(lambda: net.boxes[A].members == {A, B}, 10)
    net.wish(B, C, REMOVING)
    assert net.until(lambda: net.states(C) == {REMOVED}, 5) < 1.0
    net.run(5)
    net.start(C)
    net.until(lambda: net.boxes[C].core is None, 60)
    assert net.discharged == [C]
    assert net.boxes[A].members == net.boxes[B].members == {A, B}
    assert net.boxes[C].disk.drains, "it does not know any more that it was removed"


def test_a_leader_that_dies_in_the_middle_of_a_removal_is_followed_by_one_that_goes_on() -> None:
    for seed in range(5):
        net = calm(4, 10 + seed)
        net.wish(B, D, REMOVING)
        net.run(net.random.uniform(0.0, 0.6))
        net.crash(A)
        net.until(lambda net=net: net.boxes[D].core is None, 60)  # type: ignore[misc]
        net.until(lambda net=net: not net.settled_faults(), 60)  # type: ignore[misc]
        assert net.boxes[B].members == {B, C}


def test_chaos_while_boxes_are_drained_and_taken_back() -> None:
    for seed in range(8):
        chance = random.Random(seed)
        net = calm(4, 100 + seed)
        for _ in range(8):
            node, asked = chance.choice(list(net.boxes)), chance.choice(net.running)
            with suppress(UsageError):
                net.wish(asked, node, chance.choice([DRAINED, IN]))
            if chance.random() < 0.4 and len(net.running) > 2:
                net.crash(chance.choice(net.running), power=chance.random() < 0.5)
            net.run(chance.uniform(0.1, 4.0))
            for box in [node for node in net.boxes if node not in net.running]:
                net.start(box)
        net.until(lambda net=net: not net.settled_faults(), 90)  # type: ignore[misc]
        net.run(10)
        maps = {tuple(net.core(node).draining.map) for node in net.boxes}
        assert len(maps) == 1
        off = {entry.node for entry in next(iter(maps)) if entry.state == DRAINED}
        if off < set(net.boxes):
            net.until(lambda net=net, off=off: not computing(net) & off, 60)  # type: ignore[misc]


def test_a_deployment_is_acknowledged_only_when_it_is_on_two_disks() -> None:
    net = DrainNet(2, 11)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    net.fills(A)
    net.deploy(B)
    net.until(lambda: not net.settled_faults() and net.serves(), 30)
    net.run(20)
    assert "net" not in net.acknowledged
    net.has_room(A)
    net.until(lambda: "net" in net.acknowledged, 10)
    assert all(box.disk.deployments for box in net.boxes.values())


@pytest.mark.parametrize("seed", range(8))
def test_what_is_acknowledged_outlives_its_leader_that_dies_at_that_moment(seed: int) -> None:
    """Its disk is lost, too."""
    net = DrainNet(3, 20 + seed)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    leader = net.core(A).leader
    net.deploy(leader)  # nobody else has it
    net.until(lambda: "net" in net.acknowledged, 30)
    net.crash(leader, power=True, wipe=True)
    asked = net.running[0]
    net.until(lambda: not net.settled_faults(), 30)
    net.until(lambda: bool(net.devices(net.boxes[asked], "net")), 30)
    assert [entry.name for entry in net.core(asked).deployments.list_live()] == ["net"]


@pytest.mark.parametrize(
    ("other", "together"), [("0.2.7+new", True), ("0.0.9", True), ("0.3.0", False), ("1.1.0", False)]
)
def test_versions_one_minor_release_apart_work_together_and_others_are_refused_by_name(
    other: str, together: bool
) -> None:
    net = DrainNet(3, 12)
    net.versions[C] = other
    net.start()
    net.run(10)
    wanted = {A, B, C} if together else {A, B}
    assert net.boxes[A].members == net.boxes[B].members == wanted
    if together:
        net.deploy(B)
        net.until(lambda: "net" in net.acknowledged and not net.settled_faults(), 30)
        return
    assert [member.node for member in net.core(C).membership.members()] == [C]
    for asked, seen, version in ((A, C, other), (C, A, VERSION)):
        refused = {r.node: r for r in net.core(asked).membership.refusals.recent_refusals(net.now)}
        assert refused[seen].version == version
        assert "one minor release apart" in refused[seen].why
    net.run(300)
    lines = len(net.log)
    net.crash(C)
    net.versions[C] = VERSION
    net.start(C)
    net.until(lambda: net.boxes[A].members == {A, B, C}, 60)
    assert len(net.log) > lines


def test_who_understands_no_drains_is_told_of_none() -> None:
    """It would end the link."""
    net = DrainNet(3, 13)
    net.versions[C] = "0.1.0+traces.leaves"
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    net.wish(A, B, DRAINED)
    net.run(30)
    assert net.states(B) == {IN, DRAINED}
    assert net.core(C).draining.map.state(B) == IN
    assert net.boxes[A].members == {A, B, C}


def test_a_box_that_left_by_itself_is_no_removed_one() -> None:
    net = calm(3, 14)
    net.depart(C)
    net.until(lambda: net.boxes[C].core is None, 30)
    net.run(0.1)
    assert net.core(A).membership.peers[C].status == LEFT
    net.start(C)
    net.until(lambda: net.boxes[A].members == {A, B, C}, 10)
