"""What devices tell of themselves: as text and back, what is no card, and the cluster put together from many."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edgepart.agent.cluster.state.cards import (
    CHANGE_SHARE,
    MOST_REFUSED,
    SHARED_MEDIUM_SHARE,
    CrowdMeasurement,
    MeasuredDevice,
    build_cluster,
    find_refusals,
    is_clearly_different,
    parse_card,
    with_verdicts,
    write_card,
)
from edgepart.agent.engines.verdicts import CRASHES, FAILS, LIES, EngineDrift, EngineVerdict
from edgepart.agent.wire.control import Card
from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.devices.engine import Engine
from edgepart.planner.errors import FrameError

DEVICE = Device("pi", "bcm2711", 1e10, 4e9, 3e9, 4, 1e-4, {"conv": 1.5e10})
LINK = Link(1e8, 1e-3, 1e-4)
MEASURED = MeasuredDevice(DEVICE, {"node-b": LINK})
ENGINES = replace(
    DEVICE, engines=(Engine("lab", "LabExecutionProvider"), Engine("cuda", "CUDAExecutionProvider"))
)
REFUSALS = (
    EngineVerdict("lab", "1", CRASHES, "why"),
    EngineVerdict("lab", "2", LIES),
    EngineVerdict("gone", "1", LIES),
)


def changed(**keys: Any) -> bytes:
    return json.dumps(json.loads(write_card(MEASURED)) | keys).encode()


def test_a_card_comes_back_the_same() -> None:
    assert parse_card(write_card(MEASURED)) == MEASURED
    assert write_card(parse_card(write_card(MEASURED))) == write_card(MEASURED)


def test_a_card_tells_what_engines_are_refused_for_to_people_and_to_the_planner() -> None:
    measured = with_verdicts(replace(MEASURED, device=ENGINES, left_out={"gpu": "absent"}), REFUSALS)
    found = parse_card(write_card(measured))
    assert found == measured and found.refused == REFUSALS == find_refusals(write_card(measured))
    assert [engine.refused for engine in found.device.engines] == [frozenset("12"), frozenset()]
    assert is_clearly_different(replace(measured, refused=()), measured)
    assert is_clearly_different(replace(measured, left_out={}), measured)
    assert not with_verdicts(measured, ()).device.engines[0].refused
    (built,) = build_cluster([Card("node-a", write_card(measured))], {"node-a": "a"}).devices
    assert built.engines[0].refused == frozenset("12")


def test_the_planner_learns_which_operators_of_its_model_an_engine_lacks() -> None:
    told = [
        EngineVerdict("lab", "1", FAILS, model="net", lacks=("IsNaN_1",)),
        EngineVerdict("lab", "2", FAILS, model="net", lacks=("IsNaN_2", "Det_0")),
        EngineVerdict("lab", "3", FAILS, model="other", lacks=("Relu_0",)),
        EngineVerdict("gone", "3", FAILS, model="net", lacks=("Relu_1",)),
    ]
    measured = with_verdicts(replace(MEASURED, device=ENGINES), told)
    card = Card("node-a", write_card(measured))
    (built,) = build_cluster([card], {"node-a": "a"}, "net").devices
    assert [engine.lacks for engine in built.engines] == [{"IsNaN_1", "IsNaN_2", "Det_0"}, frozenset()]
    (shown,) = build_cluster([card], {"node-a": "a"}).devices
    assert not any(engine.lacks for engine in shown.engines)


def test_the_planner_learns_how_long_an_engine_takes_for_its_model() -> None:
    drifts = EngineDrift("lab", "net", 0.5), EngineDrift("lab", "other", 4.0)
    measured = with_verdicts(replace(MEASURED, device=ENGINES), (), drifts)
    card = Card("node-a", write_card(measured))
    assert parse_card(card.document) == measured

    def engines(model: str) -> list[tuple[float, bool]]:
        (built,) = build_cluster([card], {"node-a": "a"}, model).devices
        return [(engine.drift, engine.untried) for engine in built.engines]

    assert engines("net") == [(0.5, False), (1.0, True)]
    assert engines("other") == [(4.0, False), (1.0, True)]
    assert engines("new") == [(1.0, True), (1.0, True)]
    assert engines("") == [(1.0, False), (1.0, False)], "nothing is planned"
    refused = with_verdicts(measured, [EngineVerdict("lab", "1", FAILS, model="new")], drifts)
    (built,) = build_cluster([Card("node-a", write_card(refused))], {"node-a": "a"}, "new").devices
    assert not built.engines[0].untried


def test_a_drift_of_an_engine_is_news_if_it_has_moved_clearly() -> None:
    def card(*drifts: EngineDrift) -> MeasuredDevice:
        return with_verdicts(MEASURED, (), drifts)

    known = card(EngineDrift("lab", "net", 0.5))
    assert is_clearly_different(card(), known) and is_clearly_different(known, card())
    assert is_clearly_different(known, card(EngineDrift("lab", "net", 0.6)))
    assert not is_clearly_different(known, card(EngineDrift("lab", "net", 0.51)))


def test_a_card_tells_the_newest_refusals_only() -> None:
    many = [EngineVerdict("lab", str(n), LIES) for n in range(MOST_REFUSED + 1)]
    assert with_verdicts(MEASURED, many).refused == tuple(many[1:])


@pytest.mark.parametrize(
    "document",
    [
        changed(refused=5),
        changed(refused=[5]),
        changed(drifts=5),
        changed(drifts=[{"engine": "lab", "model": 1, "drift": 2.0}]),
        changed(drifts=[{"engine": "lab", "model": "net", "drift": "much"}]),
        changed(refused=[{"engine": "lab"}]),
        changed(left_out=[]),
        b"",
        b"\xff",
        b"5",
        b"[]",
        b"{}",
        changed(device=None),
        changed(device={"name": "pi"}),
        changed(device=json.loads(write_card(MEASURED))["device"] | {"flops_per_s": -1}),
        changed(device=json.loads(write_card(MEASURED))["device"] | {"memory_bytes": "much"}),
        changed(links=None),
        changed(links=[1]),
        changed(links={"b": 5}),
        changed(links={"b": {}}),
        changed(links={"b": {"bytes_per_s": 0, "latency_s": 0, "message_s": 0}}),
        changed(links={"b": {"bytes_per_s": 1, "latency_s": -1, "message_s": 0}}),
        changed(links={"b": {"bytes_per_s": float("nan"), "latency_s": 0, "message_s": 0}}),
        changed(links={"b": {"bytes_per_s": float("inf"), "latency_s": 0, "message_s": 0}}),
        changed(links={"b": {"bytes_per_s": 1, "latency_s": 0, "message_s": 0, "colour": 1}}),
        changed(back_bytes_per_s={"b": 0}),
        changed(back_bytes_per_s={"b": "much"}),
        changed(back_bytes_per_s=5),
        changed(together=5),
        changed(together={"nodes": ["a"], "bytes_per_s": 1.0}),
        changed(together={"nodes": [1], "bytes_per_s": 1.0, "message_s": 1.0}),
        changed(together={"nodes": ["a"], "bytes_per_s": 0.0, "message_s": 1.0}),
    ],
    ids=lambda document: document[-40:].decode("latin-1"),
)
def test_what_is_no_card_is_the_peers_fault(document: bytes) -> None:
    with pytest.raises(FrameError, match="a card that cannot be read"):
        parse_card(document)


def test_a_cluster_has_whoever_has_card_and_name_and_the_worse_of_two_measurements() -> None:
    other = Link(2e8, 5e-3, 1e-5)
    known = [
        Card("node-a", write_card(MeasuredDevice(DEVICE, {"node-b": LINK, "node-x": LINK, "node-a": LINK}))),
        Card("node-b", write_card(MeasuredDevice(DEVICE, {"node-a": other}))),
        Card("node-c", write_card(MeasuredDevice(DEVICE, {"node-a": other}))),
    ]
    cluster = build_cluster(known, {"node-b": "desk", "node-a": "attic"})
    assert [device.name for device in cluster.devices] == ["attic", "desk"]
    assert dict(cluster.links) == {("attic", "desk"): Link(1e8, 5e-3, 1e-4)}


def test_both_directions_of_a_link_come_to_the_plan() -> None:
    def cards(mine: MeasuredDevice, theirs: MeasuredDevice) -> dict[tuple[str, str], Link]:
        known = [Card("node-a", write_card(mine)), Card("node-b", write_card(theirs))]
        return dict(build_cluster(known, {"node-a": "attic", "node-b": "desk"}).links)

    up = replace(LINK, bytes_per_s=1e7)
    unequal = MeasuredDevice(DEVICE).with_link("node-b", LINK, up)
    assert parse_card(write_card(unequal)) == unequal
    both = {("attic", "desk"): LINK, ("desk", "attic"): up}
    assert cards(unequal, MeasuredDevice(DEVICE)) == both
    assert cards(MeasuredDevice(DEVICE), unequal_of("node-a", up, LINK)) == both
    slower = replace(LINK, bytes_per_s=5e6)
    assert cards(unequal, unequal_of("node-a", slower, LINK)) == both | {("desk", "attic"): slower}
    assert cards(unequal, MeasuredDevice(DEVICE, {"node-a": slower})) == {("attic", "desk"): slower}
    assert unequal.with_link("node-b", LINK, LINK) == MEASURED


def unequal_of(node: str, link: Link, back: Link) -> MeasuredDevice:
    return MeasuredDevice(DEVICE).with_link(node, link, back)


def test_only_what_a_planner_may_care_about_is_news() -> None:
    def link(**keys: float) -> MeasuredDevice:
        return MeasuredDevice(DEVICE, {"node-b": replace(LINK, **keys)})

    assert not is_clearly_different(MEASURED, MEASURED)
    assert not is_clearly_different(MEASURED, link(bytes_per_s=1e8 * (1 + CHANGE_SHARE / 2)))
    assert is_clearly_different(MEASURED, link(bytes_per_s=2e8))
    assert is_clearly_different(MEASURED, unequal_of("node-b", LINK, replace(LINK, bytes_per_s=5e7)))
    assert not is_clearly_different(MEASURED, link(latency_s=1.2e-3))
    assert is_clearly_different(MEASURED, link(latency_s=9e-3))
    assert is_clearly_different(MEASURED, MeasuredDevice(DEVICE))
    assert is_clearly_different(MEASURED, MeasuredDevice(replace(DEVICE, flops_per_s=2e10), MEASURED.links))
    assert is_clearly_different(MeasuredDevice(DEVICE), MEASURED)
    crowd = replace(MEASURED, together=CrowdMeasurement(frozenset("ab"), 1e8, 1e-4))
    assert is_clearly_different(MEASURED, crowd)
    assert is_clearly_different(crowd, MEASURED)
    assert not is_clearly_different(
        crowd, replace(crowd, together=CrowdMeasurement(frozenset("ab"), 1.1e8, 1.1e-4))
    )
    assert is_clearly_different(crowd, replace(crowd, together=CrowdMeasurement(frozenset("ab"), 2e8, 1e-4)))
    assert is_clearly_different(crowd, replace(crowd, together=CrowdMeasurement(frozenset("ab"), 1e8, 2e-4)))
    assert is_clearly_different(crowd, replace(crowd, together=CrowdMeasurement(frozenset("abc"), 1e8, 1e-4)))


def crowd_of(*measured: CrowdMeasurement) -> Cluster:
    """A cluster of a, b and c, with what their cards say."""
    links = {node: Link(1e8, 1e-3, 1e-4) for node in "abc"}
    told = dict(zip("abc", measured, strict=False))
    cards = [Card(node, write_card(MeasuredDevice(DEVICE, links, told.get(node)))) for node in "abc"]
    return build_cluster(cards, {node: node.upper() for node in "abc"})


def test_devices_share_something_where_they_send_less_together_than_one_by_one() -> None:
    three = frozenset("abc")
    apart = crowd_of()
    assert crowd_of(CrowdMeasurement(three, 3e8 * SHARED_MEDIUM_SHARE, 1e-3)) == apart
    rate = 2.9e8 * SHARED_MEDIUM_SHARE
    together = crowd_of(CrowdMeasurement(three, rate, 1e-9))
    assert together.media == (Medium("what all share", rate, frozenset("ABC")),)
    assert together.links == apart.links
    measured = replace(MEASURED, together=CrowdMeasurement(three, rate, 5.0))
    assert parse_card(write_card(measured)) == measured


def test_a_message_takes_as_long_as_it_does_in_a_crowd_where_devices_share_something() -> None:
    def link(rate: float, message_s: float) -> Link:
        return crowd_of(CrowdMeasurement(frozenset("abc"), rate, message_s)).link("A", "B")

    assert link(2e8, 1e-4) == Link(1e8, 1e-3, 1e-4)
    assert link(2e8, 3e-3).latency_s + 2e-4 == pytest.approx(3e-3)
    assert link(2e8, 3e-3).message_s == 1e-4
    assert link(3e8, 3e-3) == Link(1e8, 1e-3, 1e-4)


def test_the_largest_crowd_of_those_present_counts_and_of_equals_the_fastest() -> None:
    def media(*crowds: tuple[str, float]) -> list[tuple[float, frozenset[str]]]:
        found = crowd_of(*(CrowdMeasurement(frozenset(nodes.split()), rate, 1e-6) for nodes, rate in crowds))
        return [(medium.bytes_per_s, medium.devices) for medium in found.media]

    assert media(("a b c", 1e7), ("a b", 5e6), ("a b c", 2e7)) == [(2e7, frozenset("ABC"))]
    assert media(("a gone", 1e6)) == []  # of one device there is nothing to share
    assert media(("a b gone", 1e6)) == [(1e6, frozenset("AB"))]
