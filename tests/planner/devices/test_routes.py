"""Routes: every chunk comes to every target, once, after it came to who sends it; and how much who sends."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.devices.routes import MOST_CHUNKS, LinkTable, Route, RouteShape, fans, route, widest
from edgepart.planner.plans.plan import GATEWAY

FAST, SLOW = Link(1.25e8, 2e-4), Link(1.25e6, 2e-4)
NAMES = [f"d{n}" for n in range(8)]


def ground(count: int, slow: tuple[tuple[str, str], ...] = ()) -> LinkTable:
    devices = tuple(Device(name, "k", 1e9, 1e9, 8e9) for name in NAMES[:count])
    return LinkTable(Cluster(devices, dict.fromkeys(slow, SLOW), FAST), "d0")


def sent(found: Route, place: str) -> float:
    """Times that a place sends all of it."""
    return sum(hop.source == place for hop in found.hops) / found.chunks


def assert_is_route(found: Route, source: str, targets: list[str]) -> None:
    came: dict[tuple[str, int], int] = {}
    for hop in found.hops:
        assert (hop.target, hop.chunk) not in came and hop.target != source
        if hop.source != source:
            assert came[hop.source, hop.chunk] < hop.round
        came[hop.target, hop.chunk] = hop.round
    for target in targets:
        assert {chunk for name, chunk in came if name == target} == set(range(found.chunks))


@settings(max_examples=200)
@given(st.data())
def test_every_chunk_comes_to_every_target_once(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 8))
    names = NAMES[:count]
    pairs = [(a, b) for a in names for b in names if a < b]
    slow = tuple(data.draw(st.lists(st.sampled_from(pairs), max_size=4, unique=True)))
    source = data.draw(st.sampled_from([GATEWAY, *names]))
    others = [name for name in names if name != source]
    targets = data.draw(st.lists(st.sampled_from(others), min_size=1, unique=True))
    nbytes = data.draw(st.sampled_from([0, 10, 100_000, 10**7]))
    on = ground(count, slow)
    for shape in RouteShape:
        found = route(shape, source, targets, nbytes, on, names)
        if found is not None:
            assert_is_route(found, source, targets)
            assert found.chunks <= max(MOST_CHUNKS, len(targets))


@pytest.mark.parametrize("count", range(3, 9))
def test_the_source_sends_about_once(count: int) -> None:
    """Instead of to each of the others."""
    on, targets = ground(count), NAMES[1:count]
    found = {shape: route(shape, "d0", targets, 10**7, on, NAMES[:count]) for shape in RouteShape}
    chain, tree, scatter = found[RouteShape.CHAIN], found[RouteShape.TREE], found[RouteShape.SCATTER]
    assert chain and tree and scatter and found[RouteShape.AROUND] is None
    assert sent(chain, "d0") == 1
    assert sent(scatter, "d0") == 1
    assert sent(tree, "d0") < count - 1
    assert len(tree.hops) == count - 1
    busiest = Counter(hop.source for hop in chain.hops)
    assert set(busiest.values()) == {chain.chunks}


@pytest.mark.parametrize(
    ("count", "each_s", "late_s", "fan"),
    [(7, 1.0, 0.0, (3, 2)), (7, 1.0, 1.0, (3, 2)), (15, 1.0, 1.0, (3, 2, 1)), (15, 1.0, 9.0, (5, 2))],
)
def test_a_tree_is_as_deep_as_lateness_lets_it(
    count: int, each_s: float, late_s: float, fan: tuple[int, ...]
) -> None:
    found = fans(count, each_s, late_s)
    assert sum(one * each_s + late_s for one in found) == sum(one * each_s + late_s for one in fan)
    assert len(found) <= len(fan)


def test_chains_from_all_devices_are_one_ring() -> None:
    on = ground(4)
    links = set()
    for name in NAMES[:4]:
        found = route(
            RouteShape.CHAIN, name, [other for other in NAMES[:4] if other != name], 10**6, on, NAMES[:4]
        )
        assert found
        links |= {(hop.source, hop.target) for hop in found.hops}
    assert links == {("d0", "d1"), ("d1", "d2"), ("d2", "d3"), ("d3", "d0")}


@pytest.mark.parametrize(("nbytes", "chunks"), [(1_000, 1), (100_000, 7), (10**8, MOST_CHUNKS)])
def test_chunks_follow_from_what_a_message_costs(nbytes: int, chunks: int) -> None:
    """The best number for a chain of n links: sqrt((n - 1) S / B / a)."""
    found = route(RouteShape.CHAIN, "d0", NAMES[1:5], nbytes, ground(5), NAMES[:5])
    assert found and found.chunks == chunks


def test_one_target_needs_no_relay() -> None:
    for shape in RouteShape:
        assert route(shape, "d0", ["d1"], 10**6, ground(4), NAMES[:4]) is None


@pytest.mark.parametrize("end", ["d1", GATEWAY])
def test_a_slow_link_is_gone_around(end: str) -> None:
    on = ground(3, (("d0", "d1"),)) if end else LinkTable(ground(3, (("d0", "d1"),)).cluster, "d1")
    found = route(RouteShape.AROUND, "d0", [end], 10**6, on, NAMES[:3])
    assert found and {(hop.source, hop.target) for hop in found.hops} == {("d0", "d2"), ("d2", end)}
    assert widest("d0", ["d1", "d2"], on)["d1"] == ("d0", "d2", "d1")
    assert route(RouteShape.AROUND, "d0", [end], 10**6, on, ["d0", "d1"]) is None


def test_a_chain_avoids_a_slow_link() -> None:
    found = route(RouteShape.CHAIN, "d0", NAMES[1:4], 10**6, ground(4, (("d0", "d1"),)), NAMES[:4])
    assert found and ("d0", "d1") not in {(hop.source, hop.target) for hop in found.hops}


def test_what_is_on_the_gateways_box_is_not_passed_on() -> None:
    """It hands that over, and sends the rest once."""
    found = route(RouteShape.CHAIN, GATEWAY, NAMES[:4], 10**6, ground(4), NAMES[:4])
    assert found
    assert {hop.target for hop in found.hops if hop.source == GATEWAY} == {"d0", "d1"}
    assert sent(found, "d0") == 0
