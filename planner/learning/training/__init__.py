"""Training: what only making a network needs: drawn graphs, and later torch.

May import: planner/placing/problem.
"""

__all__: list[str] = []
