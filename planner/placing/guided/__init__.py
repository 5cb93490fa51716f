"""Guided placement: what placers compute around the networks that guide them.

May import: planner/errors, planner/placing/engine, planner/placing/problem.
"""

__all__ = ["decode", "features", "gdp_features", "placeto_state", "trained"]
