"""Interfaces: this machine's current addresses. Door: the system (system.py)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address

from edgepart.agent.host import system
from edgepart.agent.net.addresses import Interface, announced_addresses

WATCH_S = 2.0
"""Seconds between two looks at the machine's addresses. A longer time saves a small box some work; a shorter one tells
others sooner about a new address."""
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def interfaces() -> tuple[Interface, ...]:
    """Return each address of each interface, with a mark on interfaces that are down. If the system lists none, return
    the addresses of outgoing connections."""
    stats = system.interface_states()
    found = []
    for name, entries in system.interface_addresses().items():
        for entry in entries:
            if entry.family in _FAMILIES:
                bare = entry.address.partition("%")[0]
                up = name not in stats or stats[name].isup
                found.append(Interface(name, _index(name), bare, _bits(bare, entry.netmask), up))
    if not found:
        addresses = ((one, ip_address(one)) for one in system.outgoing_addresses())
        return tuple(Interface("", 0, text, ip.max_prefixlen, True) for text, ip in addresses)
    return tuple(found)


def local_addresses(host: str) -> tuple[str, ...]:
    """Return the addresses to announce for a listener on `host`, the best first (`announced_addresses`)."""
    return announced_addresses(interfaces(), host)


async def watch(current: Callable[[], object], changed: Callable[[], None]) -> None:
    """Call `changed`, for ever, whenever `current()` returns a new value."""
    last = current()
    while True:
        await asyncio.sleep(WATCH_S)
        if (now := current()) != last:
            last = now
            changed()


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0  # the interface has just gone away


def _bits(address: str, netmask: str | None) -> int:
    ip = ip_address(address)
    if not netmask:
        return ip.max_prefixlen
    return bin(int(ip_address(netmask))).count("1")
