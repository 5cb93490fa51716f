"""Peers: who may be at the other end of a connection. Rules over an identity, which reads what is revoked."""

from __future__ import annotations

import ssl

from edgepart.agent.identity import Identity, peer_id
from edgepart.planner.errors import NotAuthorised


def caller(me: Identity, connection: ssl.SSLSocket) -> str | None:
    """The node id of who connected; None: it shows no certificate. NotAuthorised where it is revoked."""
    node_id = peer_id(connection)
    if node_id in me.revoked():
        raise NotAuthorised(f"node {node_id} is revoked")
    return node_id


def called(me: Identity, connection: ssl.SSLSocket, expected: str | None, where: str) -> str:
    """The node id of who answered at `where`. NotAuthorised where it is not `expected` (None: any member), or revoked."""
    node_id = peer_id(connection)
    if node_id is None:
        raise NotAuthorised(f"{where} shows no certificate")
    if node_id == me.node_id:
        raise NotAuthorised(f"{where} is this agent itself, or a copy of its state directory")
    if expected is not None and node_id != expected:
        raise NotAuthorised(f"{where} is node {node_id}, not {expected}")
    if node_id in me.revoked():
        raise NotAuthorised(f"{where} is node {node_id}, which is revoked")
    return node_id
