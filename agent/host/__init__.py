"""The machine that the agent runs on, as its operating system describes it; child processes, jobs and rate limits.

May import: planner/devices, planner/errors.
"""

__all__ = [
    "child_process",
    "core_sets",
    "garbage_collection",
    "jobs",
    "log_format",
    "log_rate",
    "open_files",
    "process_memory",
    "system",
    "systemd",
    "token_bucket",
]
