"""The same links through a broker, and presence there.

May import: agent/net, agent/security, agent/wire, planner/errors.
"""

__all__ = ["broker", "carrier"]
