"""Weights of a model file: turns a TensorProto or SparseTensorProto into a Constant, and finds external data.
Reads files, but only inside the model's folder.

Sizes and places are checked at once and bytes are read on demand, so that a model with gigabytes of weights loads fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from edgepart.planner.errors import ModelError
from edgepart.planner.model.external import OWN_FILE
from edgepart.planner.model.foreign_formats import BEGIN_BYTES, POINTER, is_pointer
from edgepart.planner.model.graph import Constant
from edgepart.planner.region import Array

_DTYPES = frozenset(TensorProto.DataType.keys())

LARGEST_BYTES = 1 << 46
"""64 TiB: a file that declares a bigger tensor is damaged."""

SMALL_BYTES = 1 << 16
"""64 KiB: constants up to this size are kept in memory once read, and are folded at once."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The files that a model came from."""

    name: str
    """The name for messages."""
    folder: Path | None
    """The folder of its external data; None for a model given as bytes."""
    file: Path | None = None
    """The model file, from which the weights that were skimmed off are read (planner/model/external.py)."""


_NAMES: Mapping[int, str] = {number: name.lower() for name, number in TensorProto.DataType.items() if number}


def dtype_name(data_type: int, what: str = "") -> str:
    """The name of an element type, like "float" for 1. Raises ModelError, naming `what`, for an unknown number."""
    if data_type not in _NAMES:
        raise ModelError(
            f"{what}{': ' if what else ''}element type {data_type} is unknown; the file is damaged or newer than "
            "this program"
        )
    return _NAMES[data_type]


@cache
def item_bytes(dtype: str) -> int:
    """Bytes per element in memory (1 for sub-byte types, as arrays hold them); 0 for types that are not numbers."""
    if dtype in ("string", "undefined") or dtype.upper() not in _DTYPES:
        return 0
    return int(onnx.helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype.upper())).itemsize)


def check_size(shape: Sequence[int], dtype: str, what: str) -> int:
    """Bytes of a tensor of this shape. Raises ModelError for a negative extent, or a size that no model has."""
    if any(extent < 0 for extent in shape):
        raise ModelError(f"{what}: shape {list(shape)} has a negative extent")
    nbytes = math.prod(shape) * item_bytes(dtype)
    if nbytes > LARGEST_BYTES or math.prod(shape) > LARGEST_BYTES:
        raise ModelError(f"{what}: shape {list(shape)} would take {nbytes} bytes; the file is damaged")
    return nbytes


def eager_constant(name: str, array: Array, dtype: str) -> Constant:
    """A Constant whose value is in memory."""
    return Constant(name, array.shape, dtype, array.nbytes, lambda: array)


def lazy_constant(name: str, shape: tuple[int, ...], dtype: str, load: Callable[[], Array]) -> Constant:
    """A Constant that `load` computes or reads; a small value is kept after the first time."""
    nbytes = check_size(shape, dtype, f"constant {name!r}")
    return Constant(name, shape, dtype, nbytes, cache(load) if nbytes <= SMALL_BYTES else load)


def constant_of(proto: TensorProto, origin: Origin, name: str | None = None) -> Constant:
    """The value of `proto`, under its own name or under `name`. Raises ModelError if its size, type or place
    is wrong."""
    name = proto.name if name is None else name
    what = f"{origin.name}: constant {name!r}"
    dtype, shape = dtype_name(proto.data_type, what), tuple(proto.dims)
    nbytes = check_size(shape, dtype, what)
    if proto.data_location == TensorProto.EXTERNAL:
        return lazy_constant(name, shape, dtype, _external_reader(proto, origin, what))
    if dtype == "string":
        return eager_constant(name, _array(proto, what), dtype)
    if not proto.HasField("raw_data"):
        array = _array(proto, what)
    elif (held := len(proto.raw_data)) != (expected := stored_bytes(shape, proto.data_type)):
        raise ModelError(f"{what}: holds {held} bytes where {expected} were expected")
    elif nbytes > SMALL_BYTES:
        return lazy_constant(name, shape, dtype, lambda: _array(proto, what))
    else:
        array = _array(proto, what)
    return eager_constant(name, array, dtype)


def stored_bytes(shape: Sequence[int], data_type: int) -> int:
    """Bytes of a tensor in a file, where sub-byte types are packed."""
    dtype = dtype_name(data_type)
    return math.ceil(math.prod(shape) * _BITS.get(dtype, 8 * item_bytes(dtype)) / 8)


_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4e2m1": 4}
"""Bits per element of the types of which several elements share a byte."""


def _array(proto: TensorProto, what: str) -> Array:
    try:
        array: Array = onnx.numpy_helper.to_array(proto)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{what}: its value cannot be read ({error})") from error
    if array.shape != tuple(proto.dims):
        raise ModelError(f"{what}: holds {array.size} elements where its shape is {list(proto.dims)}")
    return array


def sparse_constant_of(proto: SparseTensorProto, origin: Origin) -> Constant:
    """A sparse initializer as a dense constant, which is filled in when it is read."""
    values, shape = constant_of(proto.values, origin), tuple(proto.dims)
    indices = constant_of(proto.indices, origin, name=f"{values.name} (indices)")
    what = f"{origin.name}: sparse constant {values.name!r}"

    def load() -> Array:
        dense, at = np.zeros(shape, values.load().dtype), indices.load()
        try:
            if at.ndim == 1:
                dense.reshape(-1)[at] = values.load()
            else:
                dense[tuple(at.T)] = values.load()
        except (IndexError, ValueError) as error:
            raise ModelError(
                f"{what}: indices of shape {at.shape} do not fit {list(shape)} ({error})"
            ) from error
        return dense

    check_size(shape, values.dtype, what)
    return lazy_constant(values.name, shape, values.dtype, load)


def _external_reader(proto: TensorProto, origin: Origin, what: str) -> Callable[[], Array]:
    path = external_path(proto, origin, what)
    entries = {entry.key: entry.value for entry in proto.external_data}
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or -1)
    except ValueError as error:
        raise ModelError(
            f"{what}: offset or length of its external data is not a number ({error})"
        ) from error
    if proto.data_type == TensorProto.STRING:
        raise ModelError(f"{what}: strings cannot be external data")
    expected = stored_bytes(proto.dims, proto.data_type)
    if offset < 0 or length not in (-1, expected):
        raise ModelError(
            f"{what}: its external data has {length} bytes at {offset} where {expected} were expected"
        )
    if (there := path.stat().st_size) < offset + expected:
        if is_pointer(read_begin(path)):
            raise ModelError(f"{path.name}: {POINTER}")
        raise ModelError(
            f"{what}: its external data ends at {offset + expected}, {path.name} has {there} bytes"
        )
    data_type, dims = proto.data_type, tuple(proto.dims)

    def load() -> Array:
        try:
            data = np.memmap(path, np.uint8, "r", offset, (expected,)) if expected else np.empty(0, np.uint8)
        except (OSError, ValueError) as error:
            raise ModelError(f"{what}: {path} cannot be read any more ({error}); did it change?") from error
        if dtype_name(data_type) in _BITS:
            return _array(TensorProto(data_type=data_type, dims=dims, raw_data=data.tobytes()), what)
        array = np.asarray(data).view(onnx.helper.tensor_dtype_to_np_dtype(data_type)).reshape(dims)
        return np.require(array, requirements="A")  # Numbers in a model file may be unaligned.

    return load


def read_begin(path: Path) -> bytes:
    """The first bytes of a file, by which its format is known. Raises OSError."""
    with path.open("rb") as file:
        return file.read(BEGIN_BYTES)


def external_path(proto: TensorProto, origin: Origin, what: str) -> Path:
    """The file that holds an external tensor. Raises ModelError unless it is a file inside the model's folder."""
    location = next((entry.value for entry in proto.external_data if entry.key == "location"), "")
    if origin.folder is None:
        raise ModelError(
            f"{what}: lies in the file {location!r}, but the model came as bytes; give its path instead"
        )
    if location == OWN_FILE and origin.file is not None:
        return origin.file
    relative = PurePosixPath(location)
    if (
        not location
        or relative.is_absolute()
        or ".." in relative.parts
        or "\\" in location
        or "\0" in location
    ):
        raise ModelError(f"{what}: its external data {location!r} is not a path inside the model's folder")
    path = origin.folder / relative
    try:
        leads_to = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ModelError(
            f"{what}: its external data {location!r} is missing; copy it beside the model"
        ) from error
    if not leads_to.is_relative_to(origin.folder.resolve()):
        raise ModelError(
            f"{what}: its external data {location!r} leads out of the model's folder, to {leads_to}"
        )
    if not path.is_file():
        raise ModelError(f"{what}: its external data {location!r} is not a file")
    return path


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Yields every tensor in the file: initializers and attributes, sub-graphs and functions included."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def embed_external(graph: GraphProto, origin: Origin) -> None:
    """Copies the external data of a sub-graph into it, because a sub-graph travels whole and without a folder."""
    for proto in _graph_tensors(graph):
        if proto.data_location == TensorProto.EXTERNAL:
            array = constant_of(proto, origin).load()
            proto.CopyFrom(onnx.numpy_helper.from_array(array, proto.name))


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Sequence[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        yield from (sparse.values, sparse.indices)
    if attribute.HasField("g"):
        yield from _graph_tensors(attribute.g)
    for graph in attribute.graphs:
        yield from _graph_tensors(graph)
