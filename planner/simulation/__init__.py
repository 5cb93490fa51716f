"""Simulation by discrete events: how long a plan takes for one request and for many, and how messages share the network.

May import: planner/cost, planner/devices, planner/errors, planner/plans.
"""

__all__ = ["latency", "throughput"]
