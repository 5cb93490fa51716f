"""The workload and its placement: records, files, and a checker that shares no code with the placers.

May import: planner/errors, planner/json_text, planner/widest_way.
"""

__all__ = ["checker", "networks", "read", "schedule", "task_graph", "workload", "write"]
