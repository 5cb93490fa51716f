"""Open Inference Protocol v2: reads a request's bytes into arrays, and writes arrays as an answer's bytes. Rules: no door.

It supports JSON and the binary tensor extension (Triton's extension_binary_data, adopted by KServe). No memory is allocated
merely because a client names a size: every size is compared with the bytes that have arrived.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np

from edgepart.agent.api.protocol import ModelCard, SequenceTurn
from edgepart.agent.http.json_bodies import expect_object, read_object
from edgepart.agent.http.oip_elements import (
    BINARY_ONLY,
    NUMPY,
    array_from_binary,
    array_from_json,
    binary_of,
    datatype_of_array,
    datatype_of_element,
    json_of,
)
from edgepart.planner.errors import RequestError

MAX_RANK = 32
MAX_EXTENT = 2**40
MAX_TENSORS = 1024
MAX_ID = 1024
QUICK_BYTES = 4 << 20
"""Binary numbers of at most this size are read or written in the event loop: that takes a millisecond at most, even if they
have to be copied."""
MAX_SEQUENCE_ID = 128
"""The most characters of a sequence's id."""
LARGE = "send `data` flat, or tensors as binary data"
NOT_FINITE = "NaN and infinities go as binary data"

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """An inference request that has been read."""

    id: str | None
    """The client's id of the request, which the answer repeats."""
    inputs: Mapping[str, Array]
    outputs: Mapping[str, bool | None] | None
    """The outputs asked for, each with its own `binary_data` or None; None instead of a mapping asks for all."""
    binary_output: bool
    """Whether outputs without a `binary_data` of their own are sent in binary."""
    timeout_s: float | None
    """Triton's `timeout` parameter, which is in microseconds, in seconds."""
    sequence: SequenceTurn | None = None
    """The sequence of which the request is a step."""

    def wants_binary(self, output: str) -> bool:
        own = (self.outputs or {}).get(output)
        return self.binary_output if own is None else own


@dataclass(frozen=True, slots=True)
class Envelope:
    """A request whose JSON has been read, but not its tensors."""

    document: Mapping[str, Any]
    binary: memoryview

    @property
    def is_quick(self) -> bool:
        """Whether reading the tensors takes almost no time, because binary numbers are views of the bytes that arrived."""
        entries = self.document.get("inputs")
        return (
            len(self.binary) <= QUICK_BYTES
            and isinstance(entries, list)
            and all(
                isinstance(entry, dict) and "data" not in entry and entry.get("datatype") != "BYTES"
                for entry in entries
            )
        )


def read_envelope(body: bytes | bytearray | memoryview, header_length: int | None) -> Envelope:
    """Read a request's JSON. `header_length` is the Inference-Header-Content-Length, at which the JSON ends and the binary
    data begins. Raises RequestError."""
    view = memoryview(body)
    if header_length is not None and not 0 <= header_length <= len(view):
        _refuse(f"Inference-Header-Content-Length is {header_length}, but the body has {len(view)} bytes")
    split = len(view) if header_length is None else header_length
    return Envelope(read_object(view[:split], LARGE, NOT_FINITE), view[split:])


def read_tensors(envelope: Envelope) -> InferRequest:
    document, binary = envelope.document, envelope.binary
    parameters = expect_object(document.get("parameters", {}), "parameters")
    inputs, used = _inputs(_entries(document, "inputs"), binary)
    if used != len(binary):
        _refuse(f"{len(binary) - used} bytes follow the last input's binary data; send what is announced")
    return InferRequest(
        id=_id(document.get("id")),
        inputs=inputs,
        outputs=_outputs(_entries(document, "outputs")) if document.get("outputs") else None,
        binary_output=_flag(parameters, "binary_data_output", "parameters"),
        timeout_s=_timeout(parameters.get("timeout")),
        sequence=_sequence(parameters),
    )


def read_request(body: bytes | bytearray | memoryview, header_length: int | None) -> InferRequest:
    """Read the JSON and the tensors of a request. Raises RequestError."""
    return read_tensors(read_envelope(body, header_length))


def is_quick_answer(request: InferRequest, outputs: Mapping[str, Any]) -> bool:
    """Whether writing the answer takes almost no time."""
    arrays = {name: value for name, value in outputs.items() if name in (request.outputs or outputs)}
    return (
        all(
            isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and request.wants_binary(name)
            for name, array in arrays.items()
        )
        and sum(array.nbytes for array in arrays.values()) <= QUICK_BYTES
    )


def build_answer(
    model: str,
    request: InferRequest,
    outputs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    *,
    version: str,
) -> tuple[bytes, list[bytes | memoryview]]:
    """Return the answer's JSON, and the binary data that follows it ([] if every output is in the JSON).

    Raises RequestError for values that the requested form cannot hold (NaN in JSON, for example)."""
    entries: list[dict[str, Any]] = []
    buffers: list[bytes | memoryview] = []
    for name in request.outputs or outputs:
        array = as_tensor(outputs[name])
        datatype = datatype_of_array(array.dtype)
        if datatype is None:
            _refuse(f"output {name!r} has element type {array.dtype}, which the protocol does not have")
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if request.wants_binary(name):
            data = binary_of(array, datatype)
            entry["parameters"] = {"binary_data_size": len(data)}
            buffers.append(data)
        else:
            entry["data"] = json_of(array, datatype, f"output {name!r}")
        entries.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        document["id"] = request.id
    document |= {"parameters": dict(parameters), "outputs": entries}
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode(), buffers


def as_tensor(value: Any) -> Array:
    """Return an output as a tensor: arrays stay as they are; maps, sequences and None, which the protocol lacks, become one
    string of JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    return np.array([json.dumps(_plain(value), ensure_ascii=False)], dtype=object)


def metadata(card: ModelCard) -> dict[str, Any]:
    """Return the answer to `GET /v2/models/{name}`."""
    sides = {"inputs": card.inputs, "outputs": card.outputs}
    return {
        "name": card.name,
        "versions": [card.version],
        "platform": "onnxruntime_onnx",
        **{
            side: [
                {
                    "name": value.name,
                    "datatype": datatype_of_element(value.dtype),
                    "shape": [-1] if value.shape is None else list(value.shape),
                }
                for value in values
            ]
            for side, values in sides.items()
        },
    }


def check_fit(card: ModelCard, request: InferRequest) -> None:
    """Raises RequestError if names, datatypes or shapes are not the deployment's."""
    known = {value.name: value for value in card.inputs}
    if request.sequence is not None and not card.states:
        _refuse(f"{card.name!r} keeps no states between requests; leave `sequence_id` out")
    for name, array in request.inputs.items():
        if name in card.states:
            _refuse(
                f"input {name!r} is a state that the devices keep: leave it out and give `sequence_id`, or deploy with "
                "--no-states"
            )
        if name not in known:
            _refuse(f"{card.name!r} has no input {name!r}; it has {sorted(known)}")
        value = known[name]
        datatype = datatype_of_array(array.dtype)
        if datatype != datatype_of_element(value.dtype):
            _refuse(f"input {name!r} is {datatype}; {card.name!r} takes {datatype_of_element(value.dtype)}")
        if value.shape is not None and not _fits(array.shape, value.shape):
            _refuse(f"input {name!r} has shape {list(array.shape)}; {card.name!r} takes {list(value.shape)}")
    if missing := sorted(set(known) - set(request.inputs)):
        _refuse(f"inputs {missing} of {card.name!r} are missing")
    if unknown := sorted(set(request.outputs or ()) - {value.name for value in card.outputs}):
        _refuse(f"{card.name!r} has no outputs {unknown}; it has {[v.name for v in card.outputs]}")


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(w in (-1, s) for s, w in zip(shape, wanted, strict=True))


def _inputs(entries: Sequence[Any], binary: memoryview) -> tuple[dict[str, Array], int]:
    """Return the arrays by name, and the number of bytes of `binary` that they use."""
    arrays: dict[str, Array] = {}
    offset = 0
    for index, raw in enumerate(entries):
        entry = expect_object(raw, f"inputs[{index}]")
        name = _name(entry, f"inputs[{index}]")
        where = f"input {name!r}"
        if name in arrays:
            _refuse(f"{where} is given twice")
        datatype = entry.get("datatype")
        if not isinstance(datatype, str) or datatype not in NUMPY:
            _refuse(f"{where}: datatype {datatype!r} is none of {', '.join(NUMPY)}")
        shape = _shape(entry.get("shape"), where)
        size = expect_object(entry.get("parameters", {}), f"{where}.parameters").get("binary_data_size")
        if (size is None) == ("data" not in entry):
            _refuse(f"{where}: give either `data` or `parameters.binary_data_size`")
        if size is None:
            if datatype in BINARY_ONLY:
                _refuse(f"{where}: the protocol has {datatype} in binary only; send binary_data_size")
            arrays[name] = array_from_json(entry["data"], datatype, shape, where)
            continue
        if not _is_count(size) or size > len(binary) - offset:
            _refuse(f"{where}: binary_data_size is {size!r}, but {len(binary) - offset} bytes are left")
        arrays[name] = array_from_binary(binary[offset : offset + size], datatype, shape, where)
        offset += size
    return arrays, offset


def _outputs(entries: Sequence[Any]) -> dict[str, bool | None]:
    wishes: dict[str, bool | None] = {}
    for index, raw in enumerate(entries):
        entry = expect_object(raw, f"outputs[{index}]")
        name = _name(entry, f"outputs[{index}]")
        parameters = expect_object(entry.get("parameters", {}), f"output {name!r}: parameters")
        for unsupported in ("classification", "shared_memory_region"):
            if parameters.get(unsupported):
                _refuse(f"output {name!r}: this server has no `{unsupported}`; ask for the tensor itself")
        if name in wishes:
            _refuse(f"output {name!r} is asked for twice")
        own = "binary_data" in parameters
        wishes[name] = _flag(parameters, "binary_data", f"output {name!r}") if own else None
    return wishes


def _entries(document: Mapping[str, Any], key: str) -> list[Any]:
    entries = document.get(key)
    if not isinstance(entries, list) or len(entries) > MAX_TENSORS:
        _refuse(f"`{key}` must be a list of at most {MAX_TENSORS} tensors")
    return entries


def _name(entry: Mapping[str, Any], where: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        _refuse(f"{where}: `name` must be a text that is not empty")
    return name


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MAX_RANK:
        _refuse(f"{where}: `shape` must be a list of at most {MAX_RANK} extents")
    for extent in value:
        if not _is_count(extent) or extent > MAX_EXTENT:
            _refuse(f"{where}: {extent!r} in `shape` is no extent; give whole numbers from 0 on")
    if prod(filter(None, value)) > 2**62:
        _refuse(f"{where}: a tensor of shape {value} cannot be")
    return tuple(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(parameters: Mapping[str, Any], key: str, where: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        _refuse(f"{where}: `{key}` must be true or false")
    return value


def _id(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_ID):
        _refuse(f"`id` must be a text of at most {MAX_ID} characters")
    return value


def _sequence(parameters: Mapping[str, Any]) -> SequenceTurn | None:
    """The sequence that Triton's parameters name; as there, an id of 0 or "" names none."""
    named = parameters.get("sequence_id", 0)
    start, end = (_flag(parameters, f"sequence_{key}", "parameters") for key in ("start", "end"))
    if not (_is_count(named) and named < 1 << 64) and not (
        isinstance(named, str) and len(named) <= MAX_SEQUENCE_ID
    ):
        _refuse(
            f"parameters: `sequence_id` must be a whole number of at most 64 bits, or a text of at most {MAX_SEQUENCE_ID} "
            "characters"
        )
    if not named:
        if start or end:
            _refuse("parameters: `sequence_start` and `sequence_end` need a `sequence_id`, which is not 0")
        return None
    return SequenceTurn(str(named), start, end)


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    if not _is_count(value) or value == 0:
        _refuse("parameters: `timeout` must be a positive whole number of microseconds")
    return float(value) / 1e6 if value < 1e15 else None


def _plain(value: Any) -> Any:
    """Return a map, a sequence or one of their items in a form that JSON can hold. Raises RequestError for NaN and
    infinities."""
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case np.ndarray() | np.generic():
            array = np.asarray(value)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                _refuse("a map or sequence in the output holds NaN or an infinity, which JSON cannot")
            return array.tolist()
        case bytes():
            return value.decode("utf-8", "replace")
        case float() if not np.isfinite(value):
            _refuse("a map or sequence in the output holds NaN or an infinity, which JSON cannot")
    return value


def _refuse(message: str) -> NoReturn:
    raise RequestError(message)
