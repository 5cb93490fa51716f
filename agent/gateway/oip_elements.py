"""OIP elements: converts a tensor's elements from and to the JSON and binary forms of the Open Inference Protocol v2, and
names its datatypes. Rules: pure functions.

The conversions raise a RequestError that begins with `where`, which names the tensor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from math import prod
from typing import Any, NoReturn

import numpy as np

from edgepart.agent.wire.dtypes import element_dtype, element_name
from edgepart.planner.errors import RequestError

Array = np.ndarray[Any, np.dtype[Any]]


def array_from_json(data: Any, datatype: str, shape: tuple[int, ...], where: str) -> Array:
    """Return the array in JSON `data`, which must be flat, or nested like `shape` and not ragged. Raises RequestError."""
    flat = _flatten(data, shape, where)
    size = prod(shape)
    if len(flat) != size:
        _refuse(where, f"shape {list(shape)} has {size} elements, `data` has {len(flat)}")
    if datatype == "BYTES":
        texts = _check_elements(flat, {str}, datatype, where, np.object_).reshape(shape)
        if not all(text.isascii() or _is_unicode(text) for text in flat):
            _refuse(where, "`data` holds half a surrogate pair, which is no text")
        return texts
    if datatype == "BOOL":
        return _check_elements(flat, {bool}, datatype, where, np.bool_).reshape(shape)
    dtype = numpy_dtype(datatype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if flat and set(map(type, flat)) == {int} and not limits.min <= min(flat) <= max(flat) <= limits.max:
            _refuse(where, f"a number is outside {datatype}'s {limits.min} to {limits.max}")
        return _check_elements(flat, {int}, datatype, where, dtype).reshape(shape)
    try:
        wide = _check_elements(flat, {int, float}, datatype, where, np.float64)
    except OverflowError:
        _refuse(where, f"a number is too large for {datatype}")
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    if not np.isfinite(array).all():
        _refuse(where, f"a number is too large for {datatype}")
    return array.reshape(shape)


def _check_elements(flat: list[Any], types: set[type], datatype: str, where: str, dtype: Any) -> Array:
    """Return an array of `flat`. Each element must be exactly of one of `types` (JSON's true is no number). Raises
    RequestError."""
    if strange := set(map(type, flat)) - types:
        found = ", ".join(sorted(kind.__name__ for kind in strange))
        _refuse(where, f"`data` holds {found}, which is no {datatype}")
    array = np.empty(len(flat), dtype=dtype)
    array[:] = flat
    return array


def _flatten(data: Any, shape: tuple[int, ...], where: str) -> list[Any]:
    if not isinstance(data, list):
        _refuse(where, f"`data` must be a list, found {type(data).__name__}")
    level: list[Any] = data
    extents = [len(level)]
    while level and isinstance(level[0], list):
        if len(extents) > len(shape):
            _refuse(where, f"`data` is nested deeper than shape {list(shape)}")
        first = len(level[0])
        if any(not isinstance(row, list) or len(row) != first for row in level):
            _refuse(where, "`data` is ragged: lists on one level differ in length")
        extents.append(first)
        level = list(chain.from_iterable(level))
    if len(extents) > 1 and tuple(extents) != shape[: len(extents)]:
        _refuse(where, f"`data` is nested as {extents}, but `shape` is {list(shape)}")
    return level


def array_from_binary(data: memoryview, datatype: str, shape: tuple[int, ...], where: str) -> Array:
    """Return the array in binary `data`, which is little-endian and in row-major order; a view if `data` is aligned. Raises
    RequestError."""
    if datatype == "BYTES":
        return _strings(data, prod(shape), where).reshape(shape)
    dtype = numpy_dtype(datatype)
    expected = prod(shape) * dtype.itemsize
    if len(data) != expected:
        _refuse(
            where,
            f"{datatype} of shape {list(shape)} takes {expected} bytes; {len(data)} came",
        )
    if datatype == "BOOL" and len(data) and np.frombuffer(data, np.uint8).max() > 1:
        _refuse(where, "a BOOL's byte is neither 0 nor 1")
    array = np.frombuffer(data, dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()


def _strings(data: memoryview, count: int, where: str) -> Array:
    """Return `count` texts, each of which follows its length (4 bytes). Raises RequestError."""
    if count * 4 > len(data):
        _refuse(where, f"{count} BYTES elements take at least {count * 4} bytes; {len(data)} came")
    found: list[memoryview] = []
    offset = 0
    for index in range(count):
        if offset + 4 > len(data):
            _refuse(where, f"BYTES element {index} begins after the end of the data")
        (length,) = struct.unpack_from("<I", data, offset)
        offset += 4
        if length > len(data) - offset:
            _refuse(where, f"BYTES element {index} claims {length} bytes; {len(data) - offset} are left")
        found.append(data[offset : offset + length])
        offset += length
    if offset != len(data):
        _refuse(where, f"{len(data) - offset} bytes follow the last BYTES element")
    return texts_from_bytes(found, where)


def texts_from_bytes(elements: Iterable[bytes | memoryview], where: str) -> Array:
    """Return the array of the texts that the elements are. Raises RequestError for what is no text."""
    found = []
    for index, element in enumerate(elements):
        try:
            found.append(str(element, "utf-8"))
        except UnicodeDecodeError:
            _refuse(where, f"BYTES element {index} is no UTF-8, which ONNX strings are")
    return _check_elements(found, {str}, "BYTES", where, np.object_)


def binary_of(array: Array, datatype: str) -> bytes | memoryview:
    """Return the elements' bytes; a view if the array is contiguous and has the protocol's byte order."""
    if datatype == "BYTES":
        return b"".join(part for text in texts_of(array) for part in (struct.pack("<I", len(text)), text))
    packed = np.ascontiguousarray(array, dtype=numpy_dtype(datatype))
    return packed.reshape(-1).view(np.uint8).data if packed.size else b""


def texts_of(array: Array) -> list[bytes]:
    """Return the elements of an array of texts, flat, as the bytes that travel."""
    return [_as_bytes(item) for item in array.ravel().tolist()]


def json_of(array: Array, datatype: str, where: str) -> list[Any]:
    """Return the elements as a flat list. Raises RequestError for values that JSON cannot hold."""
    if datatype in BINARY_ONLY:
        _refuse(where, f"the protocol has {datatype} in binary only; ask for it with binary_data")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        _refuse(where, "it holds NaN or an infinity, which JSON cannot; ask for it with binary_data")
    if datatype != "BYTES":
        return array.ravel().tolist()
    try:
        return [text.decode() for text in texts_of(array)]
    except UnicodeDecodeError:
        _refuse(where, "it holds bytes that are no UTF-8; ask for it with binary_data")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_bytes(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")


def _refuse(where: str, message: str) -> NoReturn:
    raise RequestError(f"{where}: {message}")


_ELEMENTS = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float",
    "FP64": "double",
    "BYTES": "string",
}
_DATATYPES = {element: name for name, element in _ELEMENTS.items()}

DATATYPES = tuple(_ELEMENTS)
"""The protocol's datatypes."""

NO_TENSOR = frozenset({"sequence", "map", "optional"})
"""ONNX's names of the kinds of values that are not tensors; they are served as one BYTES element that holds JSON."""

BINARY_ONLY = frozenset({"FP16", "BF16"})
"""Datatypes for which the protocol has no JSON form."""


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """Return the numpy type of a datatype, little-endian as the protocol requires. Raises KeyError for any other text."""
    dtype = element_dtype(_ELEMENTS[datatype])
    assert dtype is not None
    return dtype.newbyteorder("<")


def datatype_of_element(element: str) -> str:
    """Return the datatype of an ONNX element type, for metadata. Types that the protocol lacks keep their ONNX names, in
    capitals.

    >>> datatype_of_element("float"), datatype_of_element("map"), datatype_of_element("float8e4m3fn")
    ('FP32', 'BYTES', 'FLOAT8E4M3FN')
    """
    return "BYTES" if element in NO_TENSOR else _DATATYPES.get(element, element.upper())


def datatype_of_array(dtype: np.dtype[Any]) -> str | None:
    """Return the datatype of a numpy type; None if the protocol has none."""
    return _DATATYPES.get(element_name(dtype.newbyteorder("=")))
