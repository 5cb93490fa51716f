"""How a box becomes a member and stays one: joining, renewal of certificates, and drains that users signed.

May import: agent/cluster/core, agent/cluster/state, agent/discovery, agent/host, agent/net, agent/security,
agent/wire, planner/errors.
"""

__all__ = ["joining", "renewal", "signed_drains"]
