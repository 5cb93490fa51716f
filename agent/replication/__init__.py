"""Models and weights from other members, below serving.

May import: agent/net, agent/storage, agent/wire, planner/errors, planner/model, planner/plans, planner/region.
"""

__all__ = ["blobs", "throttle"]
