"""What one session over the whole model answers, and whether an answer is the same (agent/sameness.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime as ort

from edgepart.agent.sameness import TOLERANCE, TOLERANCE_FLOAT16, Values, differences, largest_difference
from edgepart.agent.sessions import load_model
from edgepart.planner.graph import Graph

__all__ = [
    "TOLERANCE",
    "TOLERANCE_FLOAT16",
    "Values",
    "alone",
    "differences",
    "is_quantised",
    "largest_difference",
    "noise_floor",
]

QUANTISED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinear", "Integer")
"""Parts of the names of operators that round to integers."""


def alone(path: Path, inputs: Values, *, level: Any = None) -> dict[str, Any]:
    """One ONNX Runtime session over the whole model; `level` is another of its optimisation levels."""
    session = load_model(path, level=level)
    found = session.run([inputs[name] for name in session.input_names])
    return dict(zip(session.output_names, found, strict=True))


def is_quantised(graph: Graph) -> bool:
    """Whether anything in it rounds to integers."""
    return any(part in op.op_type for op in graph.operators for part in QUANTISED)


def noise_floor(path: Path, inputs: Values, expected: Values) -> float:
    """What ONNX Runtime's own optimisation levels differ by on this machine: what a quantised model may differ by, as
    fusing changes how such models round."""
    levels = (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    found = [largest_difference(alone(path, inputs, level=level), expected) for level in levels]
    return max(TOLERANCE, *found)
