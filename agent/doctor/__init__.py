"""Explanations why a box is not a member, and what the user can do about it.

May import: agent/cluster/core, agent/cluster/leader, agent/cluster/membership, agent/cluster/state, agent/discovery,
agent/engines, agent/host, agent/measure, agent/net, agent/options, agent/security, agent/serving, agent/state_files,
agent/wire, planner/errors, planner/figures, planner/report.
"""

__all__ = ["checkup", "diagnosis", "report", "survey"]
