"""Builds TensorProtos, with the data inside or external. Pure rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import (
    TensorProto,
    numpy_helper,
)

from edgepart.planner.errors import InternalError
from edgepart.planner.region import Array

_ELEMENT_TYPES: Mapping[str, int] = dict(TensorProto.DataType.items())


def element_type(dtype: str) -> int:
    """The number of an ONNX element type; 0 (undefined) for a name that is not one, like "sequence"."""
    return _ELEMENT_TYPES.get(dtype.upper(), 0)


def tensor_proto(array: Array, name: str, dtype: str | None) -> TensorProto:
    """A TensorProto that holds the array. Raises InternalError if the array is not of the type `dtype`."""
    proto = numpy_helper.from_array(np.asarray(array), name)
    if dtype is not None and proto.data_type != element_type(dtype):
        raise InternalError(f"constant {name!r} is said to be {dtype}, and holds {array.dtype}")
    return proto


def external_proto(name: str, dtype: str, shape: Sequence[int], nbytes: int) -> TensorProto:
    """A TensorProto declared as external data of no real file: the session is given the value under this name."""
    proto = TensorProto(name=name, data_type=element_type(dtype), dims=shape)
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(nbytes))):
        proto.external_data.add(key=key, value=value)
    return proto
