"""Element types: converts between ONNX's names and numpy's types. Rules; neither ONNX Runtime nor the onnx package, which
takes 8 MB of an agent that needs nothing else of it.

Types that numpy lacks (bfloat16, the float8 kinds, types of less than a byte) are those of ml_dtypes, as in the onnx
package.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np

NUMBERS = {
    "float": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "string": 8,
    "bool": 9,
    "float16": 10,
    "double": 11,
    "uint32": 12,
    "uint64": 13,
    "complex64": 14,
    "complex128": 15,
    "bfloat16": 16,
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
    "uint4": 21,
    "int4": 22,
    "float4e2m1": 23,
    "float8e8m0": 24,
    "uint2": 25,
    "int2": 26,
    "float6e2m3": 27,
    "float6e3m2": 28,
}
"""ONNX's element types, by the names of TensorProto.DataType in lower case, with their numbers there."""
_SPELLINGS = {
    "float": "float32",
    "string": "object",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float4e2m1": "float4_e2m1fn",
    "float8e8m0": "float8_e8m0fnu",
    "float6e2m3": "float6_e2m3fn",
    "float6e3m2": "float6_e3m2fn",
}
"""What numpy or ml_dtypes call those that they call otherwise."""
_SUB_BYTE = ("int2", "uint2", "int4", "uint4", "float4e2m1")


_NATIVE = {
    name: np.dtype(_SPELLINGS.get(name, name))
    for name, number in NUMBERS.items()
    if number <= NUMBERS["complex128"]
}
"""numpy's own types, by the names of ONNX."""
_NATIVE_NAMES = {dtype: name for name, dtype in _NATIVE.items()}


@cache
def _others() -> Mapping[str, np.dtype[Any]]:
    """The types that numpy lacks, by the names of ONNX, as far as the installed ml_dtypes has them."""
    import ml_dtypes  # Only here: it takes 2 MB, and few models have such types.

    found = {name: getattr(ml_dtypes, _SPELLINGS.get(name, name), None) for name in NUMBERS.keys() - _NATIVE}
    return {name: np.dtype(kind) for name, kind in found.items() if kind is not None}


@cache
def _other_names() -> Mapping[np.dtype[Any], str]:
    return {dtype: name for name, dtype in _others().items()}


def element_dtype(name: str) -> np.dtype[Any] | None:
    """Return the numpy type of ONNX's element type `name` ("float", "bfloat16", ...; object for "string"); None if `name`
    is not an element type ("sequence", "map", "unknown", ...).

    >>> element_dtype("float"), element_dtype("string"), element_dtype("sequence")
    (dtype('float32'), dtype('O'), None)
    """
    known = name.lower()
    if known in _NATIVE or known not in NUMBERS:
        return _NATIVE.get(known)
    return _others().get(known)


@lru_cache(maxsize=64)
def element_name(dtype: np.dtype[Any]) -> str:
    """Return ONNX's name of a numpy type, for people; numpy's own name if ONNX has none.

    >>> element_name(np.dtype("float32")), element_name(np.dtype("<U3"))
    ('float', 'string')
    """
    return "string" if dtype.kind in "OUS" else _find_name(dtype) or dtype.name


def onnx_number(dtype: np.dtype[Any]) -> int:
    """The number of a numpy type in ONNX's TensorProto.DataType. Raises KeyError if it is none of ONNX's."""
    name = "string" if dtype.kind == "U" else _find_name(dtype)
    if name is None:
        raise KeyError(dtype)
    return NUMBERS[name]


def _find_name(dtype: np.dtype[Any]) -> str | None:
    return _NATIVE_NAMES.get(dtype) if is_native(dtype) else _other_names().get(dtype)


def is_native(dtype: np.dtype[Any]) -> bool:
    """Whether the type is numpy's own; ONNX Runtime's Python API takes only arrays of such types."""
    return dtype.type.__module__ == np.__name__


def is_sub_byte(dtype: np.dtype[Any]) -> bool:
    """Whether ONNX packs several elements of this type into a byte, which numpy's arrays do not."""
    return not is_native(dtype) and element_name(dtype) in _SUB_BYTE
