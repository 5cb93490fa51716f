"""Addresses: what others are told, and in which order they are tried."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.net.addresses import Interface, announced_addresses, rank
from edgepart.agent.net.interfaces import interfaces, local_addresses

LOOPBACK = [Interface("lo", 1, "127.0.0.1", 8), Interface("lo", 1, "::1", 128)]
BOX = [
    *LOOPBACK,
    Interface("docker0", 4, "172.17.0.1", 16),
    Interface("docker0", 4, "fe80::d0", 64),
    Interface("wlan0", 3, "fe80::33", 64),
    Interface("wlan0", 3, "2001:db8::33", 64),
    Interface("wlan0", 3, "192.168.1.33", 24),
    Interface("eth0", 2, "10.0.0.2", 24, up=False),
]


def test_real_networks_come_first_and_what_is_down_not_at_all() -> None:
    assert announced_addresses(BOX, "") == (
        "192.168.1.33",
        "2001:db8::33",
        "fe80::33",
        "172.17.0.1",
        "fe80::d0",
    )
    assert announced_addresses(BOX, "::") == announced_addresses(BOX, "")
    assert announced_addresses(BOX, "0.0.0.0") == ("192.168.1.33", "172.17.0.1")
    assert announced_addresses(LOOPBACK, "") == ("127.0.0.1", "::1")
    assert announced_addresses(BOX, "192.168.1.33") == ("192.168.1.33",)
    assert announced_addresses(BOX, "fe80::33%wlan0") == ("fe80::33",)  # the scope is this machine's own


def order(*hosts: str) -> list[str]:
    return [host for host, _ in rank([(host, 7433) for host in hosts], BOX)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Both boxes have docker0: its address is this one's own, or another container's.
        (["172.17.0.1", "192.168.1.40"], ["192.168.1.40", "172.17.0.1"]),
        (["172.17.0.5", "10.9.9.9", "192.168.1.40"], ["192.168.1.40", "10.9.9.9", "172.17.0.5"]),
        (["127.0.0.1", "172.17.0.1", "172.17.0.5"], ["172.17.0.5", "172.17.0.1", "127.0.0.1"]),
        # Link-local without a scope is tried on each interface, the real ones first.
        (["fe80::9"], ["fe80::9%wlan0", "fe80::9%docker0"]),
        (["fe80::9%3", "fe80::9%wlan0"], ["fe80::9%wlan0"]),
        (["fe80::9%wlan0"], ["fe80::9%wlan0"]),
        # A scope that this machine does not have is another machine's, or an old one.
        (["fe80::9%eth7"], ["fe80::9%wlan0", "fe80::9%docker0"]),
        (["fe80::9%docker0", "fe80::9%wlan0"], ["fe80::9%wlan0", "fe80::9%docker0"]),
        (["fe80::9%3", "2001:db8::9", "192.168.1.9"], ["2001:db8::9", "192.168.1.9", "fe80::9%wlan0"]),
        # Names were given by people; one network for two addresses leaves their order alone.
        (["pi.local", "192.168.1.9"], ["192.168.1.9", "pi.local"]),
        (["192.168.1.9", "192.168.1.8", "192.168.1.9"], ["192.168.1.9", "192.168.1.8"]),
    ],
)
def test_the_likeliest_address_is_tried_first(given: list[str], expected: list[str]) -> None:
    assert order(*given) == expected


hosts = st.sampled_from(
    ["10.0.0.9", "172.17.0.1", "172.17.3.4", "192.168.1.7", "fe80::1", "fe80::1%9", "a b", ""]
)


@given(st.lists(st.tuples(hosts, st.integers(1, 3)), max_size=8), st.lists(st.sampled_from(BOX), max_size=8))
def test_no_address_is_lost_or_invented(addresses: list[tuple[str, int]], here: list[Interface]) -> None:
    tried = rank(addresses, here)
    assert len(tried) == len(set(tried))
    bare = {(host.partition("%")[0], port) for host, port in tried}
    wanted = {(host.partition("%")[0], port) for host, port in addresses}
    scopes = any(one.up and one.ip.version == 6 and one.ip.is_link_local for one in here)
    missing = wanted - bare
    assert bare <= wanted and (not missing or not scopes)
    assert all(host.startswith("fe80") for host, _ in missing)


def test_this_machine() -> None:
    for one in interfaces():
        assert 0 <= one.prefix_bits <= ip_address(one.address).max_prefixlen
    assert local_addresses("127.0.0.1") == ("127.0.0.1",)
    everything = local_addresses("")
    assert everything and set(local_addresses("0.0.0.0")) <= set(everything)
    loopback = {ip_address(address).is_loopback for address in everything}
    assert len(loopback) == 1
