"""Faults: the exceptions that other packages raise for a model that is none, or that they cannot compute. Facts."""

from __future__ import annotations

import onnx

COMPUTING_FAULTS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RuntimeError,
    AssertionError,
    ArithmeticError,
)
"""The exceptions that ONNX's reference raises for operators that it does not know or cannot compute."""

FAULTS = (*COMPUTING_FAULTS, MemoryError, onnx.checker.ValidationError)
"""The exceptions that protobuf, onnx and numpy raise for files that are not models. They are turned into ModelError."""
