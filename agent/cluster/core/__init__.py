"""The core puts membership, leader and follower together, and drains; the driver obeys it.

May import: agent/cluster/leader, agent/cluster/membership, agent/cluster/state, agent/wire, planner/errors.
"""

__all__ = ["core", "draining"]
