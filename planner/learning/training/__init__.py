"""Training: what only making a network needs: drawn graphs, and torch.

May import: planner/errors, planner/placing/engine, planner/placing/guided, planner/placing/problem.
"""

__all__ = ["families", "trainers"]
