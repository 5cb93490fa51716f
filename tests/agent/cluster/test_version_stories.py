"""Model versions in whole clusters: rolled over, rolled back, kept safe, split, and beside members that know none."""

from __future__ import annotations

import pytest

from edgepart.agent.cluster.leader import model_copies
from edgepart.agent.cluster.state.events import (
    DeployRequested,
    ModelsStored,
    RollbackRequested,
    WeightsArrived,
)
from edgepart.agent.wire.inference import DeployOptions
from tests.agent.cluster.simnet import MODEL, SimNet, node_id

A, B, C, D = map(node_id, range(1, 5))
OTHER = "n" * 64
EARLIER = "0.1.0+traces.leaves.signed-drains.starves"
"""The version of a member that does not know the numbers of model versions."""


def deploy(net: SimNet, node: str, model: str, *, model_bytes: int = 1000, keep: int = 1) -> None:
    box = net.boxes[node]
    box.disk.models.add(model)
    net.give(box, ModelsStored(tuple(box.disk.models)))
    net.give(box, DeployRequested("net", model, model_bytes, DeployOptions(keep=keep)))


def acknowledged(net: SimNet, number: int) -> bool:
    entry = net.acknowledged.get("net")
    return entry is not None and entry.number == number


def calm(count: int, seed: int, *, model_bytes: int = 1000, earlier: str = "") -> SimNet:
    """A cluster that serves version 1 of net."""
    net = SimNet(count, seed)
    if earlier:
        net.versions[earlier] = EARLIER
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    deploy(net, B, MODEL, model_bytes=model_bytes)
    net.until(lambda: acknowledged(net, 1) and not net.settled_faults(), 30)
    return net


def served(net: SimNet, node: str) -> tuple[int, str]:
    """The number and the model by which that box starts requests."""
    box = net.boxes[node]
    order = box.plans["net", box.active["net"]]
    return order.number, order.model


@pytest.mark.parametrize("seed", range(4))
def test_when_a_version_is_acknowledged_no_member_starts_requests_on_another(seed: int) -> None:
    """Not even one that stood still when the others switched."""
    net = calm(4, seed)
    for number, (node, model) in enumerate([(A, OTHER), (C, MODEL), (D, OTHER)], 2):
        late = {A: D, C: A, D: B}[node]
        deploy(net, node, model)
        net.run(0.3)
        net.stall(late, 0.7)
        net.until(lambda number=number: acknowledged(net, number), 60)  # type: ignore[misc]
        assert {served(net, other) for other in net.boxes if late in net.boxes[node].members} == {
            (number, model)
        }
        net.run(10)


def test_a_rollback_needs_no_upload_and_brings_back_the_number() -> None:
    net = calm(3, 1)
    deploy(net, A, OTHER)
    net.until(lambda: acknowledged(net, 2), 30)
    net.give(net.boxes[C], RollbackRequested("net"))
    net.until(lambda: acknowledged(net, 1), 30)
    assert {served(net, node) for node in net.boxes} == {(1, MODEL)}
    net.give(net.boxes[B], RollbackRequested("net", 2))
    net.until(lambda: acknowledged(net, 2), 30)
    deploy(net, C, "p" * 64)
    net.until(lambda: acknowledged(net, 3), 30)
    assert [one.number for one in net.core(A).deployments.list_live()[0].kept] == [2]


def test_the_model_of_a_kept_version_survives_the_loss_of_its_holders_one_after_the_other() -> None:
    large = model_copies.MAX_EVERYWHERE_BYTES + 1
    net = calm(4, 2, model_bytes=large)
    deploy(net, B, OTHER, model_bytes=large)
    net.until(lambda: acknowledged(net, 2), 30)
    for lost in (holder for holder in (B, A, C, D) if MODEL in net.boxes[holder].disk.models):
        net.crash(lost, wipe=True)
        net.until(lambda: sum(MODEL in net.boxes[node].disk.models for node in net.running) >= 2, 30)
        net.run(10)
        if len(net.running) == 2:
            break
    net.give(net.boxes[net.running[-1]], RollbackRequested("net"))
    net.until(lambda: acknowledged(net, 1), 60)


def test_of_a_split_cluster_one_sides_version_holds_everywhere() -> None:
    net = calm(4, 3)
    for a in (A, B):
        for b in (C, D):
            net.cut(a, b)
    net.run(15)
    deploy(net, A, OTHER)
    deploy(net, C, "p" * 64)
    net.run(20)
    assert served(net, B) == (2, OTHER) and served(net, D) == (2, "p" * 64)
    deploy(net, A, "q" * 64)
    net.run(20)
    net.heal()
    seen = set()
    net.until(lambda: seen.add(served(net, A)) or not net.settled_faults(), 60)  # type: ignore[func-returns-value]
    assert {served(net, node) for node in net.boxes} == {(3, "q" * 64)}
    assert seen == {(3, "q" * 64)}, (
        "the leader, of the other side, does not take A back to its own version first"
    )
    net.give(net.boxes[D], RollbackRequested("net"))
    net.until(lambda: {served(net, node) for node in net.boxes} == {(2, OTHER)}, 60)


def test_a_member_that_knows_no_versions_serves_with_the_others() -> None:
    net = calm(3, 4, earlier=C)
    deploy(net, A, OTHER, keep=3)
    net.until(lambda: acknowledged(net, 2) and not net.settled_faults(), 30)
    net.run(30)
    assert [served(net, node) for node in (A, B, C)] == [(2, OTHER), (2, OTHER), (0, OTHER)]
    (here,), (there,) = (net.core(node).deployments.list_live() for node in (A, C))
    assert (here.number, len(here.kept), here.options.keep) == (2, 1, 3)
    assert (there.number, there.kept, there.options.keep) == (0, (), 1)
    net.crash(C)
    net.versions.clear()
    net.start(C)
    net.until(lambda: not net.settled_faults(), 30)
    net.run(10)
    assert net.core(C).deployments.list_live() == [here], "it learns the numbers once it is updated"


@pytest.mark.parametrize(
    ("earlier", "told"),
    [
        ("", {node: {"box1", "box2", "box3"} for node in (A, B, C)}),
        (C, {A: {"box1", "box2", "box3"}, B: {"box1", "box2", "box3"}, C: set()}),
        (
            A,
            {A: {"box1"}, B: {"box1"}, C: {"box1"}},
        ),  # Nobody tells the leader, and it tells what it knows itself.
    ],
)
def test_all_members_know_how_far_the_weights_are_but_those_of_an_earlier_release(
    earlier: str, told: dict[str, set[str]]
) -> None:
    net = SimNet(3, 7)
    if earlier:
        net.versions[earlier] = EARLIER
    net.start()
    net.until(lambda: not net.settled_faults(), 10)
    net.deploy(B)
    seen: dict[str, set[str]] = {node: set() for node in net.boxes}
    arrived: set[tuple[str, object]] = set()

    def look() -> bool:
        for node, box in net.boxes.items():
            for key in [key for key in box.plans if (node, key) not in arrived]:
                arrived.add((node, key))
                net.give(box, WeightsArrived(*key, 3, 9))
            if (standing := net.core(node).standings.get("net")) is not None:
                seen[node] |= {one.device for one in standing.weights if one.here_bytes == 3}
        return "net" in net.acknowledged and not net.settled_faults()

    net.until(look, 30)
    assert seen == told
    net.run(5)
    assert {net.core(node).standings["net"].weights for node in net.boxes} == {()}, (
        "a plan that serves has them all"
    )
