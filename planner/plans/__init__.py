"""The planner's output: the Plan with its canonical bytes, the checker of its rules, and replicas.

May import: planner/errors, planner/model, planner/region.
"""

__all__ = [
    "balance_requests",
    "check",
    "join",
    "model_ends",
    "plan",
    "plan_bytes",
    "reduced_precision",
    "timeline",
]
