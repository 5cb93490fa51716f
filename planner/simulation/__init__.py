"""Discrete events: what a plan does with one request and with many, and what the network makes of its messages.

May import: planner/cost, planner/devices, planner/errors, planner/plans.
"""

__all__ = ["latency", "throughput"]
