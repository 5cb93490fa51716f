"""Addresses: which of a machine's addresses to announce, and in which order to try another machine's. Rules: the interfaces
are an argument (interfaces.py reads them).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from edgepart.agent.wire.address import Address

VIRTUAL = re.compile(r"docker|br-[0-9a-f]|virbr|veth|cni|flannel|cali|lxc|lxd|podman|nerdctl|vmnet|vboxnet")
"""Prefixes of the names of interfaces that lead to containers and virtual machines on the same box. Other boxes hardly ever
reach such addresses, so these come last. A plain "br0" is often a box's only network, and does not count."""
EVERYWHERE = ("", "0.0.0.0", "::")
"""Hosts that stand for all addresses of a machine; the second one stands for its IPv4 addresses."""
MOST_SCOPES = 4
"""The most interfaces on which a link-local address without an interface is tried."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of one interface."""

    name: str
    index: int
    """The number that the system gives the interface, used as a scope id."""
    address: str
    """The address without a scope."""
    prefix_bits: int
    up: bool = True

    @property
    def virtual(self) -> bool:
        return VIRTUAL.match(self.name) is not None

    @property
    def ip(self) -> IPv4Address | IPv6Address:
        return ip_address(self.address)

    def holds(self, ip: IPv4Address | IPv6Address) -> bool:
        """Whether `ip` is on the same network as this address."""
        return ip in ip_network((self.ip, self.prefix_bits), strict=False)


def announced_addresses(interfaces: Iterable[Interface], host: str) -> tuple[str, ...]:
    """Return the addresses to announce for an agent that listens on `host`, without scopes, which differ on each machine.
    Real networks come before those of containers, IPv4 first, link-local last. Loopback addresses are returned only if
    there are no others (agents on one machine without a network).
    """
    if host not in EVERYWHERE:
        return (host.partition("%")[0],)
    known = [one for one in interfaces if one.up and (host != "0.0.0.0" or one.ip.version == 4)]
    outside = [one for one in known if not one.ip.is_loopback]
    order = sorted(outside or known, key=lambda one: (one.virtual, _kind(one.ip), one.ip.packed))
    return tuple(dict.fromkeys(one.address for one in order))


def _kind(ip: IPv4Address | IPv6Address) -> int:
    return 2 if ip.is_link_local else 0 if ip.version == 4 else 1


def rank(addresses: Iterable[Address], interfaces: Sequence[Interface]) -> list[Address]:
    """Return another machine's addresses in the order in which to try them; addresses of one rank keep their order.

    Addresses on a network that this machine is on come first, then addresses behind a route, then link-local ones. Those
    of container bridges, which both machines may have alike, this machine's own, and loopback come last. A link-local
    address that names no interface of this machine is tried on several.
    """
    living = [one for one in interfaces if one.up]
    scoped = [each for address in addresses for each in _add_scopes(address, living)]
    return sorted(dict.fromkeys(scoped), key=lambda address: _rank(address[0], living))


def _add_scopes(address: Address, interfaces: Sequence[Interface]) -> Iterator[Address]:
    host, _, scope = address[0].partition("%")
    ip = _ip(host)
    if ip is None or ip.version == 4 or not ip.is_link_local:
        yield address
        return
    if (
        here := next((one.name for one in interfaces if scope in (one.name, str(one.index))), None)
    ) is not None:
        yield f"{host}%{here}", address[1]
        return
    ways = [one for one in interfaces if one.ip.version == 6 and one.ip.is_link_local]
    for way in sorted(ways, key=lambda one: one.virtual)[:MOST_SCOPES]:
        yield f"{host}%{way.name}", address[1]


def _rank(host: str, interfaces: Sequence[Interface]) -> int:
    bare, _, scope = host.partition("%")
    ip = _ip(bare)
    if ip is None:
        return 1  # a host name, which somebody gave on purpose
    if ip.is_loopback:
        return 5
    if any(one.ip == ip for one in interfaces):
        return 4
    on = [one for one in interfaces if scope in (one.name, str(one.index))] if scope else []
    on = on or [one for one in interfaces if one.holds(ip)]
    if on and all(one.virtual for one in on):
        return 3
    if ip.is_link_local:
        return 2
    return 0 if on else 1


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
