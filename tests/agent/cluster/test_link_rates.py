"""Link rates: the slowest link between the nodes that are asked about counts, by whichever end it was measured."""

from __future__ import annotations

from edgepart.agent.cluster.leader.link_rates import slowest_bytes_per_s
from edgepart.agent.cluster.state.cards import MeasuredDevice, write_card
from edgepart.agent.wire.control import Card
from edgepart.planner.devices.cluster import Device, Link


def card(node: str, **rates: float) -> Card:
    device = Device(node, "virtual", 1e9, 1e9, 1e9)
    links = {other: Link(rate, 0.0) for other, rate in rates.items()}
    return Card(node, write_card(MeasuredDevice(device, links)))


def test_the_slowest_link_between_them_counts() -> None:
    cards = {one.node: one for one in (card("a", b=5e6, c=1e6), card("b", a=4e6, c=3e6), card("c"))}
    assert slowest_bytes_per_s("ab", cards) == 4e6
    assert slowest_bytes_per_s("abc", cards) == 1e6
    assert slowest_bytes_per_s("bcd", cards) == 3e6


def test_without_a_measurement_nothing_is_known() -> None:
    assert slowest_bytes_per_s("ab", {}) == 0.0
    assert slowest_bytes_per_s("a", {"a": card("a", b=5e6)}) == 0.0
