"""Candidates in whole clusters: tried, given another share, promoted while boxes die, and beside members that know none."""

from __future__ import annotations

import pytest

from edgepart.agent.cluster.state.events import (
    CandidateRequested,
    DeployRequested,
    ModelsStored,
    PromoteRequested,
    ShareRequested,
    UndeployRequested,
)
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner.errors import UsageError
from tests.agent.cluster.simnet import MODEL, SimNet, node_id

A, B, C = map(node_id, range(1, 4))
OTHER = "n" * 64
EARLIER = "0.1.0+traces.leaves.signed-drains.starves.versions"
"""The version of a member that knows no candidates."""
TEN = TrialShare(10)


def give_model(net: SimNet, node: str, model: str) -> None:
    box = net.boxes[node]
    box.disk.models.add(model)
    net.give(box, ModelsStored(tuple(box.disk.models)))


def propose(net: SimNet, node: str, model: str = OTHER, share: TrialShare = TEN) -> None:
    give_model(net, node, model)
    net.give(net.boxes[node], CandidateRequested("net", model, 1000, DeployOptions(), None, share))


def calm(seed: int, count: int = 3) -> SimNet:
    """A cluster that serves version 1 of net."""
    net = SimNet(count, seed)
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    give_model(net, B, MODEL)
    net.give(net.boxes[B], DeployRequested("net", MODEL, 1000, DeployOptions()))
    net.until(lambda: acknowledged(net, "net", 1) and not net.settled_faults(), 30)
    return net


def acknowledged(net: SimNet, name: str, number: int) -> bool:
    entry = net.acknowledged.get(name)
    return entry is not None and entry.number == number


def tried(seed: int, count: int = 3) -> SimNet:
    """A cluster that serves version 1 of net, and version 2 as its candidate."""
    net = calm(seed, count)
    propose(net, C)
    net.until(lambda: acknowledged(net, "net.candidate", 2) and not net.settled_faults(), 30)
    return net


def served(net: SimNet, name: str) -> set[tuple[int, str]]:
    """The numbers and models by which boxes start requests for that name."""
    orders = [
        net.boxes[node].plans[name, net.boxes[node].active[name]]
        for node in net.running
        if name in net.boxes[node].active
    ]
    return {(order.number, order.model) for order in orders}


def shares(net: SimNet) -> set[object]:
    """What all boxes believe that the candidate gets."""
    entries = [net.core(node).deployments.candidate("net") for node in net.running]
    return {None if one is None or one.candidacy is None else one.candidacy.share for one in entries}


def test_a_candidate_is_served_beside_its_parent_and_survives_a_loss_as_any_deployment() -> None:
    net = tried(1)
    assert served(net, "net") == {(1, MODEL)} and served(net, "net.candidate") == {(2, OTHER)}
    net.crash(C)
    net.until(lambda: not net.settled_faults(), 60)
    assert served(net, "net") == {(1, MODEL)} and served(net, "net.candidate") == {(2, OTHER)}
    net.start(C)
    net.until(lambda: not net.settled_faults() and shares(net) == {10}, 60)


def test_another_share_reaches_all_and_makes_no_plan() -> None:
    net = tried(2)
    net.run(10)
    before, computed = {node: dict(net.boxes[node].active) for node in net.running}, net.computed
    net.give(net.boxes[A], ShareRequested("net", TrialShare(60)))
    net.until(lambda: shares(net) == {60}, 5)
    net.run(20)
    assert {node: dict(net.boxes[node].active) for node in net.running} == before
    assert net.computed == computed
    net.crash(B, power=True)
    net.run(1)
    net.start(B)
    net.until(lambda: shares(net) == {60} and not net.settled_faults(), 60)


@pytest.mark.parametrize("seed", range(3))
def test_a_promoted_candidate_serves_everywhere_and_is_gone_whoever_asked_for_it(seed: int) -> None:
    net = tried(10 + seed, 4)
    asked = net.running[seed]
    net.give(net.boxes[asked], PromoteRequested("net"))
    net.run(0.3)
    net.crash(asked)
    net.until(lambda: acknowledged(net, "net", 2) and not net.settled_faults(), 60)
    net.until(lambda: shares(net) == {None}, 20)
    assert served(net, "net") == {(2, OTHER)} and served(net, "net.candidate") == set()
    (entry,) = net.core(net.running[0]).deployments.list_live()
    assert [one.number for one in entry.kept] == [1]
    net.start(asked)
    net.until(lambda: not net.settled_faults() and served(net, "net") == {(2, OTHER)}, 60)


def test_a_candidate_is_there_until_its_promotion_is_acknowledged() -> None:
    net = tried(3)
    net.give(net.boxes[A], PromoteRequested("net"))
    seen = []

    def both() -> bool:
        done = acknowledged(net, "net", 2)
        seen.append((done, shares(net) == {10}))
        return done

    net.until(both, 30)
    assert all(there for done, there in seen if not done)


def test_with_its_parent_goes_a_candidate_at_once() -> None:
    net = tried(7)
    for node in net.running:
        if node != net.core(node).leader:
            net.give(net.boxes[node], UndeployRequested("net"))
            assert net.core(node).deployments.list_live() == []
            break
    net.until(lambda: all(not net.core(node).deployments.list_live() for node in net.running), 10)


def test_with_its_parent_goes_a_candidate_also_of_the_other_side_of_a_split() -> None:
    net = calm(4)
    net.cut(A, C)
    net.cut(B, C)
    net.run(15)
    propose(net, C)
    net.give(net.boxes[A], UndeployRequested("net"))
    net.run(5)
    net.heal()
    net.until(lambda: all(not net.core(node).deployments.list_live() for node in net.running), 60)
    assert served(net, "net.candidate") == set()


def test_no_candidate_is_made_while_a_member_knows_none() -> None:
    net = SimNet(3, 5)
    net.versions[C] = EARLIER
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    give_model(net, B, MODEL)
    net.give(net.boxes[B], DeployRequested("net", MODEL, 1000, DeployOptions()))
    net.until(lambda: acknowledged(net, "net", 1), 30)
    with pytest.raises(UsageError, match=r"box3 \(0\.1\.0\): no candidates are known there"):
        propose(net, B)
    assert len(net.core(B).deployments.list_live()) == 1


def test_to_a_member_of_an_earlier_release_a_candidate_is_a_deployment_like_any_other() -> None:
    net = tried(6)
    net.crash(C)
    net.versions[C] = EARLIER
    net.boxes[C].disk.deployments = ()
    net.start(C)
    net.until(lambda: not net.settled_faults(), 60)
    net.run(10)
    told = {entry.name: entry for entry in net.core(C).deployments.list_live()}
    assert told.keys() == {"net", "net.candidate"} and told["net.candidate"].candidacy is None
    assert served(net, "net.candidate") == {(2, OTHER)}
    net.give(net.boxes[A], ShareRequested("net", TrialShare(30)))
    net.run(10)
    assert {net.core(node).deployments.candidate("net").candidacy.share for node in (A, B)} == {30}  # type: ignore[union-attr]
    net.give(net.boxes[A], PromoteRequested("net"))
    net.until(lambda: {served(net, "net.candidate") == set(), acknowledged(net, "net", 2)} == {True}, 60)
