"""The array codec: turns values of ONNX Runtime into bytes and back, numeric arrays without a copy. Rules: no door.

A value is None, a numpy array of any ONNX element type (string arrays hold str or bytes), a sequence (list)
or a map (dict of int or str keys) of values, or a plain number or string inside one of those. Its **meta**
says how to read it from the payload, and MessagePack can hold it:

    None | ("array", element type, shape) | ("strings", shape, bytes) | ("plain", value)
         | ("list", metas) | ("map", keys, metas) | ("rounded", kind, shape)
         | ("likely", element type, shape, count)

A rounded array (Rounded in reduced_precision.py) cannot be inside a sequence or map, and nor can an array of which only
the most likely entries travel (LikelyEntries in likely_entries.py).

Bytes are little-endian (big-endian hosts are refused); each array starts at a multiple of ALIGNMENT bytes in the
payload. Elements of less than a byte (int4, float4, ...) take one byte each, as in numpy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from reprlib import repr as shortly  # a value from outside may be of any size and depth
from typing import Any

import msgpack
import numpy as np

from edgepart.agent.wire.dtypes import element_dtype, element_name
from edgepart.agent.wire.likely_entries import LikelyEntries, check_likely
from edgepart.agent.wire.reduced_precision import Rounded
from edgepart.planner.errors import FrameError, InternalError
from edgepart.planner.plans.reduced_precision import wire_bytes
from edgepart.planner.region import Array

ALIGNMENT = 64
MAX_RANK = 64
"""The most axes of an array: numpy holds no more, and the product of many extents would take long to compute."""
MAX_DEPTH = 8
"""The greatest depth of nested sequences and maps; ONNX has sequences of maps, which is a depth of 2."""

Meta = Any
Value = Any
"""A numpy array or, for a value that is no tensor, a list, a dict or None."""


def pack_arrays(values: Sequence[Any]) -> tuple[tuple[Meta, ...], list[memoryview]]:
    """Return the metas and the payload buffers of `values`; contiguous arrays are not copied.

    InternalError for a value of any other type than the docstring of this module lists.
    """
    if sys.byteorder != "little":
        raise InternalError("edgepart sends arrays little-endian and does not run on big-endian hosts")
    packer = _Packer()
    return tuple([packer.pack(value, 0) for value in values]), packer.buffers


def unpack_arrays(metas: Sequence[Meta], payload: memoryview | None) -> list[Any]:
    """Return the values that the metas describe; numeric arrays are views of `payload`.

    FrameError if a meta is malformed or the metas do not describe exactly the whole payload.
    """
    reader = _Reader(memoryview(b"") if payload is None else payload)
    values = [reader.read(meta, 0) for meta in metas]
    if reader.position != reader.payload.nbytes:
        raise _misfit(reader.position, reader.payload.nbytes)
    return values


def _misfit(nbytes: int, payload_bytes: int) -> FrameError:
    return FrameError(f"arrays take {nbytes} bytes of a payload of {payload_bytes}")


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Where numeric arrays lie in a payload. To read them by it is quicker than by their metas, which are the same for each
    message of a transfer."""

    arrays: tuple[tuple[np.dtype[Any], int, tuple[int, ...]], ...]
    """The type, the first byte and the shape of each array."""
    nbytes: int

    def read(self, payload: bytes | bytearray | memoryview) -> list[Any]:
        """The same as `unpack_arrays` with the metas; `payload` is flat."""
        if len(payload) != self.nbytes:
            raise _misfit(self.nbytes, len(payload))
        return [np.ndarray(shape, dtype, payload, start) for dtype, start, shape in self.arrays]


def layout_of(metas: Sequence[Meta]) -> ArrayLayout | None:
    """The layout of a payload with these metas. None unless all are of numeric arrays with elements, and well-formed."""
    arrays, end = [], 0
    try:
        for kind, name, shape in metas:
            if kind != "array" or type(shape) is not tuple:
                return None
            dtype, size = dtype_of(name), prod(_shape(shape))
            if not size:
                return None
            arrays.append((dtype, start := _align(end), shape))
            end = start + size * dtype.itemsize
    except (TypeError, ValueError, FrameError):
        return None  # `unpack_arrays` says what is wrong.
    return ArrayLayout(tuple(arrays), end)


def value_bytes(value: Value) -> int:
    """The bytes of an array in the form in which it travels; 0 for strings and for values that are no tensors."""
    if isinstance(value, np.ndarray):
        return 0 if value.dtype.hasobject else value.nbytes
    return value.nbytes if isinstance(value, (Rounded, LikelyEntries)) else 0


def dtype_of(name: str) -> np.dtype[Any]:
    """numpy's type for a numeric ONNX element type ("float", "bfloat16", ...); FrameError for any other name."""
    dtype = element_dtype(name)
    if dtype is None or dtype.hasobject:
        raise FrameError(f"unknown element type {name[:80]!r}")
    return dtype


@lru_cache(maxsize=64)
def name_of(dtype: np.dtype[Any]) -> str:
    """The ONNX element type (lower case) of a numeric numpy type. InternalError if there is none."""
    name = element_name(dtype)
    if element_dtype(name) != dtype:
        raise InternalError(f"numpy type {dtype} has no ONNX element type")
    return name


class _Packer:
    def __init__(self) -> None:
        self.buffers: list[memoryview] = []
        self._length = 0

    def pack(self, value: Any, depth: int) -> Meta:
        if depth > MAX_DEPTH:
            raise InternalError(f"a value is nested deeper than {MAX_DEPTH}")
        if type(value) is np.ndarray:  # Nearly all values are, and matching takes longer.
            return self._array(value)
        match value:
            case None:
                return None
            case np.ndarray() | np.generic():
                return self._array(np.asarray(value))
            case Rounded() if not depth:
                self._add(value.data.data)
                return ("rounded", value.kind, value.shape)
            case LikelyEntries() if not depth:
                for array in (value.log_sums, value.ids, value.values):
                    self._array(array)
                return ("likely", name_of(value.values.dtype), value.shape, value.count)
            case list() | tuple():
                return ("list", tuple(self.pack(item, depth + 1) for item in value))
            case dict():
                return (
                    "map",
                    tuple(map(_key, value)),
                    tuple(self.pack(v, depth + 1) for v in value.values()),
                )
            case bool() | int() | float() | str() | bytes() if depth:
                return ("plain", value)
        raise InternalError(f"a {type(value).__name__} is no value that can travel")

    def _array(self, array: Array) -> Meta:
        if array.dtype.kind in "OUS":
            items = array.ravel().tolist()
            if not all(isinstance(item, (str, bytes)) for item in items):
                raise InternalError("a string array holds something else than strings")
            packed = msgpack.packb(items, unicode_errors="surrogatepass")
            self._add(memoryview(packed))
            return ("strings", array.shape, len(packed))
        name = name_of(array.dtype)
        try:
            self._add(array.data.cast("B"))
        except (
            TypeError,
            ValueError,
        ):  # No memoryview holds the types of ml_dtypes, and none casts what has gaps.
            self._add(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return ("array", name, array.shape)

    def _add(self, view: memoryview) -> None:
        if not view.nbytes:
            return
        if gap := -self._length % ALIGNMENT:
            self.buffers.append(memoryview(bytes(gap)))
        self.buffers.append(view)
        self._length += gap + view.nbytes


def _key(key: Any) -> int | str:
    if isinstance(key, str):
        return key
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return int(key)
    raise InternalError(f"the key {key!r} of a map is neither int nor str")


class _Reader:
    def __init__(self, payload: memoryview) -> None:
        self.payload = payload
        self.position = 0

    def read(self, meta: Meta, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise FrameError(f"values are nested deeper than {MAX_DEPTH}")
        match meta:
            case None:
                return None
            case ("array", str() as name, tuple() as shape):
                return self._array(dtype_of(name), _shape(shape))
            case ("rounded", str() as kind, tuple() as shape) if not depth:
                extents = _shape(shape)
                nbytes = wire_bytes(kind, extents)
                return Rounded(kind, extents, np.frombuffer(self._take(nbytes), np.uint8))
            case ("likely", str() as name, tuple() as shape, int() as count) if not depth:
                return self._likely(dtype_of(name), _shape(shape), count)
            case ("strings", tuple() as shape, int() as nbytes):
                return self._strings(_shape(shape), nbytes)
            case ("plain", (bool() | int() | float() | str() | bytes()) as value) if depth:
                return value
            case ("list", tuple() as metas):
                return [self.read(item, depth + 1) for item in metas]
            case ("map", tuple() as keys, tuple() as metas):
                return self._map(keys, metas, depth)
        raise FrameError(f"{shortly(meta)} describes no value")

    def _map(self, keys: tuple[Any, ...], metas: tuple[Meta, ...], depth: int) -> dict[int | str, Any]:
        if len(keys) != len(metas) or not all(type(key) in (int, str) for key in keys):
            raise FrameError("a map's keys do not match its values")
        return {key: self.read(item, depth + 1) for key, item in zip(keys, metas, strict=True)}

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        raw = self._take(prod(shape) * dtype.itemsize)
        try:
            return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)
        except ValueError as error:
            raise FrameError(f"{dtype} of shape {shape} cannot be: {error}") from error

    def _likely(self, dtype: np.dtype[Any], shape: tuple[int, ...], count: int) -> LikelyEntries:
        rows = prod(shape[:-1])
        if type(count) is not int or count < 1 or rows < 1:
            raise FrameError(f"{count} likely entries of {rows} rows cannot be")
        log_sums = self._array(np.dtype(np.float64), (rows,))
        ids = self._array(np.dtype(np.uint32), (rows, count))
        return check_likely(LikelyEntries(shape, ids, self._array(dtype, (rows, count)), log_sums))

    def _strings(self, shape: tuple[int, ...], nbytes: int) -> Array:
        try:
            items = msgpack.unpackb(self._take(nbytes), unicode_errors="surrogatepass")
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise FrameError(f"a string array is not MessagePack: {type(error).__name__}: {error}") from error
        if not isinstance(items, list) or len(items) != prod(shape):
            raise FrameError(f"a string array does not hold the {prod(shape)} items of its shape")
        if not all(isinstance(item, (str, bytes)) for item in items):
            raise FrameError("a string array holds something else than strings")
        array = np.empty(len(items), dtype=object)
        array[:] = items
        try:
            return array.reshape(shape)
        except ValueError as error:
            raise FrameError(f"strings of shape {shape} cannot be: {error}") from error

    def _take(self, nbytes: int) -> memoryview:
        start = _align(self.position) if nbytes else self.position
        if nbytes < 0 or start + nbytes > self.payload.nbytes:
            raise FrameError(
                f"an array of {nbytes} bytes at {start} is outside its payload of {self.payload.nbytes}"
            )
        if nbytes:
            self.position = start + nbytes
        return self.payload[start : start + nbytes] if nbytes else memoryview(b"")


def _align(position: int) -> int:
    """Where an array begins that follows `position` bytes."""
    return position + -position % ALIGNMENT


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    if len(shape) > MAX_RANK or not all(type(size) is int and size >= 0 for size in shape):
        raise FrameError(f"{shortly(shape)} is no shape")
    return shape
