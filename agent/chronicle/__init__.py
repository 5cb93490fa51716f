"""What happened lately, for people: events of the cluster with their reasons, figures of requests, and lines of the log.
All of it is in memory and bounded; nothing is written to disk.

May import: agent/cluster/state, agent/wire, planner/figures.
"""

__all__ = ["cluster_story", "event_log", "log_lines", "numbered_log", "request_history"]
