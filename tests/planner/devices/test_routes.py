"""Routes: every chunk comes to every target, once, after it came to who sends it; and how much who sends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.devices.routes import MOST_CHUNKS, LinkTable, Route, detour, widest
from edgepart.planner.plans.plan import GATEWAY

FAST, SLOW = Link(1.25e8, 2e-4), Link(1.25e6, 2e-4)
NAMES = [f"d{n}" for n in range(8)]


def link_table(count: int, slow: tuple[tuple[str, str], ...] = ()) -> LinkTable:
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
    found = detour(source, targets, nbytes, link_table(count, slow), names)
    if found is not None:
        assert_is_route(found, source, targets)
        assert found.chunks <= MOST_CHUNKS


@pytest.mark.parametrize(("nbytes", "chunks"), [(1_000, 1), (100_000, 4), (10**8, MOST_CHUNKS)])
def test_chunks_follow_from_what_a_message_costs(nbytes: int, chunks: int) -> None:
    """The best number for a way of n links: sqrt((n - 1) S / B / a)."""
    found = detour("d0", ["d1"], nbytes, link_table(4, (("d0", "d1"),)), NAMES[:4])
    assert found and found.chunks == chunks


@pytest.mark.parametrize("targets", [["d1"], NAMES[1:4], [GATEWAY]])
def test_nothing_goes_around_equal_links(targets: list[str]) -> None:
    assert detour("d0", targets, 10**6, link_table(4), NAMES[:4]) is None


@pytest.mark.parametrize("end", ["d1", GATEWAY])
def test_a_slow_link_is_gone_around(end: str) -> None:
    slow = link_table(3, (("d0", "d1"),))
    links = slow if end else LinkTable(slow.cluster, "d1")
    found = detour("d0", [end], 10**6, links, NAMES[:3])
    assert found and {(hop.source, hop.target) for hop in found.hops} == {("d0", "d2"), ("d2", end)}
    assert widest("d0", ["d1", "d2"], links)["d1"] == ("d0", "d2", "d1")
    assert detour("d0", [end], 10**6, links, ["d0", "d1"]) is None


def test_several_targets_get_it_along_one_tree() -> None:
    """What d1 gets around the slow link comes from a target that has it anyway, and not from the source once more."""
    found = detour("d0", NAMES[1:4], 10**6, link_table(4, (("d0", "d1"),)), NAMES[:4])
    assert found
    assert {(hop.source, hop.target) for hop in found.hops} == {("d0", "d2"), ("d0", "d3"), ("d2", "d1")}
    assert sent(found, "d0") == 2


def test_what_is_on_the_gateways_box_is_handed_over() -> None:
    """However fast the network is beside that."""
    fast = replace(link_table(4, (("d0", "d1"),)).cluster, default_link=Link(5e10, 1e-5))
    found = detour(GATEWAY, NAMES[:4], 10**6, LinkTable(fast, "d0"), NAMES[:4])
    assert found and {hop.source for hop in found.hops if hop.target == "d0"} == {GATEWAY}
    assert detour("d0", [GATEWAY], 10**6, LinkTable(fast, "d0"), NAMES[:4]) is None
    assert sent(found, "d0") == 0
