"""The planner's other input: devices and links with their speeds, known boards, offers to buy,
and routes between devices.

May import: planner/errors, planner/plans, planner/widest_way.
"""

__all__ = [
    "boards",
    "cluster",
    "cluster_json",
    "engine",
    "equal_devices",
    "fields",
    "offers",
    "rates",
    "routes",
    "what_if",
]
