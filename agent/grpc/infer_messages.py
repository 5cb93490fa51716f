"""Infer messages: reads a ModelInferRequest by the rules of the Open Inference Protocol, and writes a ModelInferResponse.
Rules: no door.

Tensors come as raw contents (bytes in the protocol's order), or typed, in a field for each kind of number. An answer's
tensors are typed if those of the request were, unless one of them has a datatype that goes raw only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
from google.protobuf.message import DecodeError

from edgepart.agent.gateway import oip
from edgepart.agent.gateway.oip import Array, InferRequest
from edgepart.agent.gateway.oip_elements import (
    BINARY_ONLY,
    array_from_binary,
    binary_of,
    numpy_dtype,
    texts_from_bytes,
    texts_of,
)
from edgepart.agent.grpc.messages import CLASSES, RAW_INPUTS, RAW_OUTPUTS
from edgepart.agent.grpc.raw_contents import join_message, split_message
from edgepart.planner.errors import RequestError

MAX_TYPED_ELEMENTS = 4 << 20
"""The most elements of a typed tensor, each of which takes some 32 bytes while it is read."""

TYPED_FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of InferTensorContents for each datatype that has one."""
_WIDE = {"int_contents": np.int32, "uint_contents": np.uint32}
"""What a field holds that is for numbers of several sizes."""


@dataclass(frozen=True, slots=True)
class InferMessage:
    """A request whose message has been parsed, but not its tensors."""

    model: str
    version: str
    document: Mapping[str, Any]
    """The request as gateway/oip.py reads it; `data` of an input is an InferTensorContents."""
    raw: list[memoryview]
    nbytes: int
    """The size of the whole message."""

    @property
    def is_quick(self) -> bool:
        """Whether reading the tensors takes almost no time."""
        return self.nbytes < oip.ASIDE_FROM_BYTES or oip.is_quick(self.document, self.nbytes)

    @property
    def sequence(self) -> tuple[str, str] | None:
        """The deployment and the id of the sequence of which the request seems to be a step; None if it is of none."""
        named = self.document["parameters"].get("sequence_id")
        return (self.model, str(named)) if named else None


def parse(name: str, data: bytes) -> Any:
    """Return the message of the class `name` that the bytes are. Raises RequestError."""
    try:
        return CLASSES[name].FromString(data)
    except DecodeError:
        raise RequestError(f"the bytes are no {name}") from None


def read_message(data: bytes) -> InferMessage:
    """Parse a ModelInferRequest. Raises RequestError."""
    head, raw = split_message(data, RAW_INPUTS)
    message = parse("ModelInferRequest", head)
    inputs = [_describe_input(tensor, bool(raw)) for tensor in message.inputs]
    parameters = _values(message.parameters)
    parameters.setdefault("binary_data_output", not any("data" in entry for entry in inputs))
    document: dict[str, Any] = {"id": message.id or None, "parameters": parameters, "inputs": inputs}
    if message.outputs:
        document["outputs"] = [
            {"name": wanted.name, "parameters": _values(wanted.parameters)} for wanted in message.outputs
        ]
    return InferMessage(message.model_name, message.model_version, document, raw, len(data))


def read_tensors(message: InferMessage) -> InferRequest:
    """Read the tensors. Raises RequestError."""
    elements = _MessageElements(message.raw)
    request = oip.read_document(message.document, elements)
    if more := len(message.raw) - elements.used:
        _refuse(f"`raw_input_contents` has {more} tensors more than there are inputs")
    return request


def build_answer(
    model: str,
    request: InferRequest,
    outputs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    *,
    version: str,
) -> list[bytes | memoryview]:
    """Return the pieces of the ModelInferResponse. Raises RequestError for values that the protocol does not have."""
    tensors = list(oip.answer_tensors(request, outputs))
    raw = any(datatype in BINARY_ONLY or request.wants_binary(name) for name, datatype, _ in tensors)
    response = CLASSES["ModelInferResponse"](model_name=model, model_version=version, id=request.id or "")
    for key, value in parameters.items():
        _set_parameter(response.parameters[key], value)
    for name, datatype, array in tensors:
        tensor = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if not raw:
            values = texts_of(array) if datatype == "BYTES" else array.ravel().tolist()
            getattr(tensor.contents, TYPED_FIELDS[datatype]).extend(values)
    values = [binary_of(array, datatype) for _, datatype, array in tensors] if raw else []
    return join_message(response.SerializeToString(), RAW_OUTPUTS, values)


class _MessageElements:
    """Reads inputs' elements, either typed or from the next of the raw contents."""

    def __init__(self, raw: list[memoryview]) -> None:
        self._raw = raw
        self.used = 0

    def __call__(self, entry: Mapping[str, Any], datatype: str, shape: tuple[int, ...], where: str) -> Array:
        if "data" in entry:
            return _typed(entry["data"], datatype, shape, where)
        if self.used == len(self._raw):
            _refuse(f"{where}: `raw_input_contents` has {self.used} tensors, none for this input")
        self.used += 1
        return array_from_binary(self._raw[self.used - 1], datatype, shape, where)


def _describe_input(tensor: Any, raw: bool) -> dict[str, Any]:
    """Return the entry of an input in the document. `raw` says whether the request has raw contents."""
    if raw and tensor.contents.ByteSize():
        _refuse(f"input {tensor.name!r}: give either `contents` or the request's `raw_input_contents`")
    entry = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.shape[: oip.MAX_RANK + 1]),
        "parameters": _values(tensor.parameters),
    }
    return entry if raw else entry | {"data": tensor.contents}


def _typed(contents: Any, datatype: str, shape: tuple[int, ...], where: str) -> Array:
    if datatype not in TYPED_FIELDS:
        _refuse(f"{where}: the protocol has {datatype} raw only; send `raw_input_contents`")
    field, size = TYPED_FIELDS[datatype], prod(shape)
    found = getattr(contents, field)
    if len(found) != size:
        _refuse(f"{where}: shape {list(shape)} has {size} elements, `{field}` has {len(found)}")
    if size > MAX_TYPED_ELEMENTS:
        _refuse(f"{where}: over {MAX_TYPED_ELEMENTS} typed elements; send `raw_input_contents`")
    if datatype == "BYTES":
        return texts_from_bytes(found, where).reshape(shape)
    dtype = numpy_dtype(datatype)
    wide = np.fromiter(found, _WIDE.get(field, dtype), size)
    narrow = wide.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(narrow, wide):
        limits = np.iinfo(dtype)
        _refuse(f"{where}: a number is outside {datatype}'s {limits.min} to {limits.max}")
    return narrow.reshape(shape)


def _values(parameters: Any) -> dict[str, Any]:
    """Return the values of a map of InferParameters; those without a value are None."""
    found = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("choice")
        found[key] = getattr(parameter, choice) if choice else None
    return found


def _set_parameter(parameter: Any, value: Any) -> None:
    match value:
        case bool():
            parameter.bool_param = value
        case int():
            parameter.int64_param = value
        case float():
            parameter.double_param = value
        case _:
            parameter.string_param = str(value)


def _refuse(message: str) -> NoReturn:
    raise RequestError(message)
