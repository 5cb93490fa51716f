"""ONNX Runtime's sessions of this device's segments: how they are made, shared and run.

May import: agent/engines, agent/execution, agent/host, agent/wire, planner/errors, planner/plans, planner/region.
"""

__all__ = [
    "cpu_sessions",
    "loaded_models",
    "loaded_segments",
    "segment_weights",
    "sessions",
    "shared_segments",
]
