"""`edgepart trace`: where the time of a request goes, by device and along its critical path.

May import: agent/api, agent/trace, cli/options, cli/output, cli/tensors, cli/verification, client, planner/devices,
planner/errors, planner/figures, planner/plans, planner/simulation.
"""

__all__ = ["trace_command"]
