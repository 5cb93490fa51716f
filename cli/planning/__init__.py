"""`edgepart plan`: what a cluster would do with a model: predicted, explained, drawn, verified, varied, and written as
files (`edgepart export MODEL`); and placements of workloads.

May import: agent/engines, agent/host, agent/measure, cli/options, cli/output, cli/plan_text, cli/sources,
cli/verification, client, planner/devices, planner/errors, planner/figures, planner/json_text, planner/layout,
planner/placing/engine, planner/placing/placers, planner/placing/problem, planner/planner, planner/plans,
planner/report, planner/search, planner/simulation, planner/vocabulary.
"""

__all__ = ["exporting", "plan_command", "plan_inputs", "plan_options"]
