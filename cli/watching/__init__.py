"""Commands that watch a cluster: what happened, the lines of an agent's log, and a live view in a terminal.

May import: cli/candidate_text, cli/options, cli/output, cli/query, client, planner/errors, planner/figures.
"""

__all__ = ["events_command", "logs_command", "top_command"]
