"""Endpoints: the address that an agent listens on, and the addresses at which others reach it. Door: sockets and the
machine's interfaces."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from edgepart.agent.net.interfaces import local_addresses
from edgepart.agent.wire.address import Address, format_address, mqtt_node, parse_address
from edgepart.planner.errors import Unavailable


def bind(address: Address, *, option: str = "--http") -> socket.socket:
    """Return a listening socket. Raises Unavailable, which names the option, if it cannot listen on the address."""
    both = address[0] in ("", "::") and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family, dualstack_ipv6=both)
    except OSError as error:
        where, why = format_address(address), os.strerror(error.errno) if error.errno else str(error)
        raise Unavailable(
            f"{option} {where}: cannot listen there ({why}); give another address or port"
        ) from error


def own_addresses(bound: Address) -> tuple[str, ...]:
    """The addresses at which others reach a socket that is bound to `bound`, the best first."""
    if mqtt_node(bound) is not None:
        return (format_address(bound),)
    hosts = local_addresses(bound[0]) or ("127.0.0.1",)
    return tuple(format_address((host, bound[1])) for host in hosts)


def parse_addresses(texts: Iterable[str]) -> list[Address]:
    return [parse_address(text) for text in texts]


def reachable_text(bound: Address) -> str:
    """The address at which programs on this machine reach a socket that is bound to `bound`."""
    six = "127.0.0.1" if socket.has_dualstack_ipv6() else "::1"
    host = {"0.0.0.0": "127.0.0.1", "::": six, "": "127.0.0.1"}.get(bound[0], bound[0])
    return format_address((host, bound[1]))
