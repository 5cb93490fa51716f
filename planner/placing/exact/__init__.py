"""The exact placement by CP-SAT, as far as a budget goes: models, bounds, and ways to make a graph smaller.

May import: planner/errors, planner/figures, planner/placing, planner/placing/engine, planner/placing/placers,
planner/placing/problem.
"""
