"""The core: puts membership, leader, follower and drains together; the driver obeys it.

May import: agent/cluster/leader, agent/cluster/membership, agent/cluster/state, agent/wire, planner/errors.
"""

__all__ = ["core", "draining"]
