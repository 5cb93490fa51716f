"""Places: what an agent listens on, and where others reach it. Door: sockets and the machine's interfaces."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address

from edgepart.agent.interfaces import local_addresses
from edgepart.agent.options import Address, format_address, mqtt_node, parse_address
from edgepart.planner.errors import UsageError


def bind(address: Address) -> socket.socket:
    """A listening socket. UsageError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        where = format_address(address)
        raise UsageError(f"--http {where}: cannot listen there ({error.strerror}); give another") from error


def own_addresses(bound: Address) -> tuple[str, ...]:
    """Where others reach what is bound to `bound`; loopback last, where it is any address."""
    if mqtt_node(bound) is not None:
        return (format_address(bound),)
    hosts = sorted(
        local_addresses(bound[0]), key=lambda host: (ip_address(host.partition("%")[0]).is_loopback, host)
    )
    return tuple(format_address((host, bound[1])) for host in hosts or ["127.0.0.1"])


def parsed(texts: Iterable[str]) -> list[Address]:
    return [parse_address(text) for text in texts]


def reachable_text(bound: Address) -> str:
    """For programs on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bound[0], bound[0])
    return format_address((host, bound[1]))
