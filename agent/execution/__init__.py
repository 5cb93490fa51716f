"""What this device does of a plan: its schedule, its copies, and the sessions of ONNX Runtime.

May import: agent/cluster/state, agent/host, agent/trace, agent/wire, planner/errors, planner/plans, planner/region.
"""

__all__ = ["copies", "executor", "nchwc_array", "nchwc_choice", "prepared", "schedule", "sessions"]
