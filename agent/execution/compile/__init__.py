"""Segments as ONNX Runtime has optimised them for this processor, in blocked layouts, and their cache.

May import: agent/engines, agent/execution, agent/execution/runtime, agent/storage, planner/model, planner/plans.
"""

__all__ = ["cache", "compiler"]
