"""Peers: who may be at the other end of a connection. Rules over an identity, which reads what is revoked."""

from __future__ import annotations

import ssl

from edgepart.agent.net.faults import Fault, Mistrusted
from edgepart.agent.security.identity import Identity, peer_id


def called(me: Identity, connection: ssl.SSLSocket, expected: str | None, where: str) -> str:
    """The node id of who answered at `where`. Mistrusted where it is not `expected` (None: any member), or revoked."""
    node_id = peer_id(connection)
    if node_id is None:
        raise Mistrusted(Fault.NO_TLS, f"{where} shows no certificate")
    if node_id == me.node_id:
        raise Mistrusted(Fault.ITSELF, f"{where} is this agent itself, or a copy of its state directory")
    if expected is not None and node_id != expected:
        raise Mistrusted(Fault.OTHER_NODE, f"{where} is node {node_id}, not {expected}")
    if node_id in me.revoked():
        raise Mistrusted(Fault.REVOKED, f"{where} is node {node_id}, which is revoked")
    return node_id
