"""Hints of where other agents are, by mDNS and from all other sources. Nothing in here is trusted.

May import: agent/cluster/state, agent/host, agent/mqtt, agent/net, agent/options, agent/security, agent/wire.
"""

__all__ = ["hints", "mdns"]
