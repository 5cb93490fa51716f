"""Element types: converts between ONNX's names and numpy's types. Rules; no ONNX Runtime.

For types that numpy lacks (bfloat16, the float8 kinds, types of less than a byte) the onnx package gives types of
ml_dtypes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper


@lru_cache(maxsize=64)  # Names come from peers too; ONNX has fewer than 32.
def element_dtype(name: str) -> np.dtype[Any] | None:
    """Return the numpy type of ONNX's element type `name` ("float", "bfloat16", ...; object for "string"); None if `name`
    is not an element type ("sequence", "map", "unknown", ...).

    >>> element_dtype("float"), element_dtype("string"), element_dtype("sequence")
    (dtype('float32'), dtype('O'), None)
    """
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name.upper())))
    except (ValueError, KeyError):
        return None


@lru_cache(maxsize=64)
def element_name(dtype: np.dtype[Any]) -> str:
    """Return ONNX's name of a numpy type, for people; numpy's own name if ONNX has none.

    >>> element_name(np.dtype("float32")), element_name(np.dtype("<U3"))
    ('float', 'string')
    """
    if dtype.kind in "OUS":
        return "string"
    try:
        return str(TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(dtype))).lower()
    except (ValueError, KeyError):
        return dtype.name


def onnx_number(dtype: np.dtype[Any]) -> int:
    """The number of a numpy type in ONNX's TensorProto.DataType."""
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def is_native(dtype: np.dtype[Any]) -> bool:
    """Whether the type is numpy's own; ONNX Runtime's Python API takes only arrays of such types."""
    return dtype.type.__module__ == np.__name__


def is_sub_byte(dtype: np.dtype[Any]) -> bool:
    """Whether ONNX packs several elements of this type into a byte, which numpy's arrays do not."""
    return dtype in _SUB_BYTE


_SUB_BYTE = tuple(
    np.dtype(getattr(ml_dtypes, name))
    for name in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")
    if hasattr(ml_dtypes, name)
)
