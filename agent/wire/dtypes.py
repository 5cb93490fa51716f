"""Element types: ONNX's names for them and numpy's. Rules; no ONNX Runtime.

Types that numpy lacks (bfloat16, the float8 kinds, the sub-byte ones) are ml_dtypes' types, as the onnx
package gives them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper


def element_dtype(name: str) -> np.dtype[Any] | None:
    """The numpy type of ONNX's element type `name` ("float", "bfloat16", "string": object); None for what is
    no tensor ("sequence", "map", "unknown" ...).

    >>> element_dtype("float"), element_dtype("string"), element_dtype("sequence")
    (dtype('float32'), dtype('O'), None)
    """
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name.upper())))
    except (ValueError, KeyError):
        return None


def element_name(dtype: np.dtype[Any]) -> str:
    """ONNX's name of a numpy type, for people; numpy's own name where ONNX has none.

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
    """TensorProto.DataType of a numpy type."""
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def is_native(dtype: np.dtype[Any]) -> bool:
    """Whether numpy itself knows the type; ONNX Runtime's Python front takes only those as arrays."""
    return dtype.type.__module__ == np.__name__


def is_sub_byte(dtype: np.dtype[Any]) -> bool:
    """Whether ONNX packs several elements into a byte, which numpy's arrays do not."""
    return dtype in _SUB_BYTE


_SUB_BYTE = tuple(
    np.dtype(getattr(ml_dtypes, name))
    for name in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")
    if hasattr(ml_dtypes, name)
)
