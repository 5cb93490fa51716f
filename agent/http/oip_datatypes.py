"""The datatypes of the Open Inference Protocol v2, and their names in ONNX and numpy. Facts and look-ups."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_TABLE: tuple[tuple[str, str, Any], ...] = (
    ("BOOL", "bool", np.bool_),
    ("UINT8", "uint8", np.uint8),
    ("UINT16", "uint16", np.uint16),
    ("UINT32", "uint32", np.uint32),
    ("UINT64", "uint64", np.uint64),
    ("INT8", "int8", np.int8),
    ("INT16", "int16", np.int16),
    ("INT32", "int32", np.int32),
    ("INT64", "int64", np.int64),
    ("FP16", "float16", np.float16),
    ("BF16", "bfloat16", ml_dtypes.bfloat16),
    ("FP32", "float", np.float32),
    ("FP64", "double", np.float64),
    ("BYTES", "string", np.object_),
)

NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(kind).newbyteorder("<") for name, _, kind in _TABLE}
"""Numpy type, little-endian as the protocol wants it, by datatype."""

_BY_ELEMENT = {element: name for name, element, _ in _TABLE}
_BY_NUMPY = {np.dtype(kind): name for name, _, kind in _TABLE}

NO_TENSOR = frozenset({"sequence", "map", "optional"})
"""What ONNX calls values that are no tensors; they are served as one BYTES element that holds JSON."""

BINARY_ONLY = frozenset({"FP16", "BF16"})
"""JSON has no form for these in the protocol."""


def datatype_of_element(element: str) -> str:
    """For metadata, from ONNX's element type; types that the protocol lacks keep their ONNX name in capitals.

    >>> datatype_of_element("float"), datatype_of_element("map"), datatype_of_element("float8e4m3fn")
    ('FP32', 'BYTES', 'FLOAT8E4M3FN')
    """
    return "BYTES" if element in NO_TENSOR else _BY_ELEMENT.get(element, element.upper())


def datatype_of_array(dtype: np.dtype[Any]) -> str | None:
    """None where the protocol has no such type."""
    return "BYTES" if dtype.kind in "OUS" else _BY_NUMPY.get(dtype.newbyteorder("="))
