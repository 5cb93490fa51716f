"""The engines of this box: which ones ONNX Runtime's execution providers make, which of them are asked for, how sessions
are made on them, and which of them are refused.

May import: planner/errors, planner/figures, planner/placing/problem, planner/plans.
"""

__all__ = ["catalogue", "choice", "installed", "networks", "provider_sessions", "verdicts"]
