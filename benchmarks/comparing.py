"""What one session over the whole model answers, and whether an answer is the same (agent/sameness.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgepart.agent.sameness import TOLERANCE, TOLERANCE_FLOAT16, Values, differences, largest_difference
from edgepart.agent.sessions import load_model

__all__ = ["TOLERANCE", "TOLERANCE_FLOAT16", "Values", "alone", "differences", "largest_difference"]


def alone(path: Path, inputs: Values, *, level: Any = None) -> dict[str, Any]:
    """One ONNX Runtime session over the whole model; `level` is another of its optimisation levels."""
    session = load_model(path, level=level)
    found = session.run([inputs[name] for name in session.input_names])
    return dict(zip(session.output_names, found, strict=True))
