"""What one session over the whole model answers, and whether an answer is the same: the product's first promise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

Values = Mapping[str, Any]

TOLERANCE = 1e-4
"""Of the largest magnitude of the output, for float32."""

TOLERANCE_FLOAT16 = 5e-3
"""The same where the output is float16."""


def alone(path: Path, inputs: Values, *, level: Any = None) -> dict[str, Any]:
    """One ONNX Runtime session over the whole model; `level` is another of its optimisation levels."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if level is not None:
        options.graph_optimization_level = level
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def differences(got: Values, expected: Values, tolerance: float | None = None) -> list[str]:
    """Outputs that are not the same answer, and by how much; nothing where all are. `tolerance` replaces what the
    outputs' types allow."""
    found = [f"{name} is missing" for name in expected.keys() - got.keys()]
    for name in expected.keys() & got.keys():
        mine, theirs = np.asarray(got[name]), np.asarray(expected[name])
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            found.append(f"{name} is {mine.dtype}{mine.shape}, expected {theirs.dtype}{theirs.shape}")
        elif theirs.dtype.kind == "f":
            allowed = TOLERANCE_FLOAT16 if theirs.dtype == np.float16 else TOLERANCE
            relative = _relative(mine, theirs)
            if not relative <= (allowed if tolerance is None else tolerance):
                found.append(f"{name} differs by {relative:.3g} of its largest magnitude")
        elif theirs.size and not (mine == theirs).all():
            found.append(f"{name} differs")
    return found


def largest_difference(got: Values, expected: Values) -> float:
    """Over the outputs of floating point, relative to each one's largest magnitude; nan where one is not comparable."""
    pairs = [(np.asarray(got[name]), np.asarray(value)) for name, value in expected.items() if name in got]
    floats = [(mine, theirs) for mine, theirs in pairs if theirs.dtype.kind == "f"]
    return float(np.max([_relative(mine, theirs) for mine, theirs in floats], initial=0.0))  # nan stays nan


def _relative(mine: Any, theirs: Any) -> float:
    if mine.shape != theirs.shape:
        return float("nan")
    if not theirs.size:
        return 0.0
    worst = float(np.abs(mine.astype(np.float64) - theirs).max())
    scale = float(np.abs(theirs).max())
    if worst == 0.0:
        return 0.0
    return worst / scale if scale else float("inf")
