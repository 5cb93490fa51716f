"""Membership: links, heartbeats, suspects, incarnations, flapping, and the election of the leader.

May import: agent/cluster/state, agent/wire.
"""

__all__ = ["election", "failure_detector", "membership", "own_state", "roster"]
