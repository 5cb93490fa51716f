"""Addresses of agents, and their text form. Rules: no door."""

from __future__ import annotations

import re

from edgepart.planner.errors import UsageError

Address = tuple[str, int]
"""(host, port): the host is a name or a bare IPv4 or IPv6 address; an agent that listens on port 0 gets a free port.
An agent that is reached through a broker has the host "mqtt:NODE" and port 0 (`mqtt_address`)."""


def parse_address(text: str, *, option: str = "address", default_port: int | None = None) -> Address:
    """Return the address in `text`. Raises UsageError, which names `option`, if `text` is not an address.

    >>> parse_address("pi-a.local:7433")
    ('pi-a.local', 7433)
    >>> parse_address("[fe80::1%eth0]:7433")
    ('fe80::1%eth0', 7433)
    >>> parse_address("*:7433")  # every address
    ('', 7433)
    """
    if re.fullmatch(r"mqtt:[0-9a-f]{16}", text):
        return text, 0
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([^\s:\[\]/]+))(?::([0-9]{1,5}))?", text)
    if not found or (found[3] is None and default_port is None):
        raise UsageError(
            f"{option} {text!r}: give HOST:PORT, and an IPv6 address in brackets, like [fe80::1]:7433"
        )
    port = default_port if found[3] is None else int(found[3])
    if port is None or port > 65535:
        raise UsageError(f"{option} {text!r}: a port is a number from 0 to 65535")
    return "" if found[2] == "*" else found[1] or found[2], port


def format_address(address: Address) -> str:
    """Return the address as text, with brackets around an IPv6 address.

    >>> format_address(("fe80::1", 7433))
    '[fe80::1]:7433'
    """
    host, port = address
    if mqtt_node(address) is not None:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def mqtt_address(node: str) -> Address:
    """Return the address, through the broker, of the agent with this node id.

    >>> format_address(mqtt_address("0123456789abcdef"))
    'mqtt:0123456789abcdef'
    """
    return f"mqtt:{node}", 0


def mqtt_node(address: Address) -> str | None:
    """Return the node id in an address through the broker; None for a TCP address."""
    scheme, colon, node = address[0].partition(":")
    return node if scheme == "mqtt" and colon else None
