"""ONNX Runtime's values: numpy's arrays as ONNX Runtime takes and gives them. A door: ONNX Runtime.

Types that numpy lacks travel as arrays of ml_dtypes. Strings, sequences, maps and optionals are no arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_types

from edgepart.agent.wire.dtypes import element_dtype, is_native, is_sub_byte, onnx_number
from edgepart.agent.wire.tensors import Value
from edgepart.planner.region import Array

CPU = ort_types.OrtDevice(ort_types.OrtDevice.cpu(), ort_types.OrtDevice.default_memory(), 0)
"""The memory that arrays lie in."""


def as_ort_value(value: Value) -> Any:
    """An OrtValue that uses the array's own memory, which must outlive it. Types that numpy lacks are possible, but none
    of less than a byte."""
    array = np.asarray(value, order="C")
    if is_native(array.dtype):
        return ort.OrtValue.ortvalue_from_numpy(array)
    if is_sub_byte(array.dtype):
        raise TypeError(f"ONNX Runtime's Python front takes no {array.dtype} arrays")
    raw = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, onnx_number(array.dtype))


def as_ort_values(arrays: Sequence[Array]) -> Any:
    """A vector of OrtValues that use the arrays' own memory. numpy must know all their types."""
    values = ort_types.OrtValueVector()
    for array in arrays:
        values.push_back(ort_types.OrtValue.ortvalue_from_numpy(array, CPU))
    return values


def as_array(value: Any, dtype: np.dtype[Any] | None) -> Value:
    """A numpy array of an OrtValue; a copy if numpy lacks the type."""
    if dtype is None or is_native(dtype):
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    if is_sub_byte(dtype):
        proto = TensorProto(data_type=onnx_number(dtype), dims=value.shape(), raw_data=raw)
        return numpy_helper.to_array(proto)
    return np.frombuffer(bytearray(raw), dtype).reshape(value.shape())


def pack(array: Array) -> Array:
    """The bytes of an array whose elements are smaller than a byte, packed as ONNX does."""
    return np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)


def port_dtype(ort_type: str) -> np.dtype[Any] | None:
    """The dtype of ONNX Runtime's "tensor(float)"; None for seq(...), map(...), optional(...)."""
    kind, _, rest = ort_type.partition("(")
    return element_dtype(rest.rstrip(")")) if kind == "tensor" else None
