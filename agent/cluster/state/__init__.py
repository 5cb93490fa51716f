"""State that members tell each other and merge (deployments and their versions, drains, cards, profiles, drift), and the
events and effects of the core.

May import: agent/engines, agent/security, agent/wire, planner/cost, planner/devices, planner/errors, planner/json_text,
planner/plans.
"""

__all__ = [
    "bindings",
    "candidates",
    "card_book",
    "cards",
    "deployments",
    "drains",
    "drift",
    "earlier_releases",
    "events",
    "judging",
    "kept_plans",
    "model_versions",
    "profiles",
]
