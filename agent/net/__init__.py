"""Authenticated links between agents: listen, dial, stream, write, dispatch and ask.

May import: agent/cluster/state, agent/host, agent/security, agent/trace, agent/wire, planner/errors.
"""

__all__ = [
    "addresses",
    "dialer",
    "dispatch",
    "endpoints",
    "faults",
    "interfaces",
    "rpc_client",
    "sightings",
    "stream",
    "transport",
]
