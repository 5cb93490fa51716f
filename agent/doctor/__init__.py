"""Why a box is not in, and what a person can do about it.

May import: agent/cluster/core, agent/cluster/leader, agent/cluster/membership, agent/cluster/state, agent/discovery,
agent/host, agent/measure, agent/net, agent/options, agent/security, agent/serving, agent/state_files, agent/wire,
planner/errors, planner/figures, planner/report.
"""

__all__ = ["checkup", "diagnosis", "report", "survey"]
