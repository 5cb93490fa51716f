"""Links between agents through an MQTT broker, and presence there.

May import: agent/net, agent/security, agent/wire, planner/errors.
"""

__all__ = ["broker", "carrier", "session"]
