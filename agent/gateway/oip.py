"""Open Inference Protocol v2, whatever carries it: reads a request's document into an InferRequest, and says what an answer
holds. Rules: no door.

A **document** is the request as JSON spells it: `{"id", "parameters", "inputs": [{"name", "datatype", "shape",
"parameters", ...}], "outputs": [{"name", "parameters"}]}`. HTTP gets it as JSON, and gRPC makes it of its messages. Only
the elements of the tensors come in different ways, which `ReadElements` hides. No memory is allocated merely because a
client names a size: every size is compared with the bytes that have arrived.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn, Protocol

import numpy as np

from edgepart.agent.api.inference_request import InferResult, SequenceTurn
from edgepart.agent.gateway.oip_elements import DATATYPES, datatype_of_array
from edgepart.planner.errors import RequestError

MAX_RANK = 32
MAX_EXTENT = 2**40
MAX_TENSORS = 1024
MAX_ID = 1024
QUICK_BYTES = 4 << 20
"""Binary numbers of at most this size are read or written in the event loop: that takes a millisecond at most, even if they
have to be copied."""
ASIDE_FROM_BYTES = 64 << 10
"""JSON or texts of this many bytes or more are read in a thread of the pool, so that the event loop's heartbeats are not
late. Binary numbers are read and written in the event loop, because that is faster than changing threads."""
MAX_SEQUENCE_ID = 128
"""The most characters of a sequence's id."""

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


class ReadElements(Protocol):
    """Reads the elements of one input, whose entry of the document it gets. Raises a RequestError that begins with `where`,
    which names the input."""

    def __call__(
        self, entry: Mapping[str, Any], datatype: str, shape: tuple[int, ...], where: str
    ) -> Array: ...


def read_document(document: Mapping[str, Any], read_elements: ReadElements) -> InferRequest:
    """Read a request. `read_elements` is called for the inputs in their order. Raises RequestError."""
    parameters = expect_object(document.get("parameters", {}), "parameters")
    return InferRequest(
        inputs=_inputs(_entries(document, "inputs"), read_elements),
        id=_id(document.get("id")),
        outputs=_outputs(_entries(document, "outputs")) if document.get("outputs") else None,
        binary_output=_flag(parameters, "binary_data_output", "parameters"),
        timeout_s=_timeout(parameters.get("timeout")),
        sequence=_sequence(parameters),
    )


def is_quick(document: Mapping[str, Any], nbytes: int) -> bool:
    """Whether reading the tensors takes almost no time, because binary numbers are views of the `nbytes` that arrived. The
    document need not be checked yet."""
    entries = document.get("inputs")
    return (
        nbytes <= QUICK_BYTES
        and isinstance(entries, list)
        and all(
            isinstance(entry, dict) and "data" not in entry and entry.get("datatype") != "BYTES"
            for entry in entries
        )
    )


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


def answer_tensors(request: InferRequest, outputs: Mapping[str, Any]) -> Iterator[tuple[str, str, Array]]:
    """Yield the name, the datatype and the values of each output that the request asks for. Raises RequestError for values
    that the protocol does not have."""
    for name in request.outputs or outputs:
        array = as_tensor(outputs[name])
        datatype = datatype_of_array(array.dtype)
        if datatype is None:
            _refuse(f"output {name!r} has element type {array.dtype}, which the protocol does not have")
        yield name, datatype, array


def answer_parameters(request: InferRequest, result: InferResult) -> dict[str, Any]:
    """Return what an answer says of itself."""
    parameters: dict[str, Any] = {
        "epoch": f"{result.epoch.term}.{result.epoch.number}",
        "seconds": round(result.seconds, 6),
        "replays": result.replays,
    }
    if request.sequence is not None:
        parameters["sequence_id"] = request.sequence.id
    return parameters


def as_tensor(value: Any) -> Array:
    """Return an output as a tensor: arrays stay as they are; maps, sequences and None, which the protocol lacks, become one
    string of JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    return np.array([json.dumps(_plain(value), ensure_ascii=False)], dtype=object)


def expect_object(value: Any, where: str) -> Mapping[str, Any]:
    """Return `value`, which has to be a JSON object. Raises RequestError, which says `where` it stands."""
    if not isinstance(value, dict):
        raise RequestError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _inputs(entries: Sequence[Any], read_elements: ReadElements) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for index, raw in enumerate(entries):
        entry = expect_object(raw, f"inputs[{index}]")
        name = _name(entry, f"inputs[{index}]")
        where = f"input {name!r}"
        if name in arrays:
            _refuse(f"{where} is given twice")
        datatype = entry.get("datatype")
        if not isinstance(datatype, str) or datatype not in DATATYPES:
            _refuse(f"{where}: datatype {datatype!r} is none of {', '.join(DATATYPES)}")
        shape = _shape(entry.get("shape"), where)
        parameters = expect_object(entry.get("parameters", {}), f"{where}.parameters")
        if parameters.get("shared_memory_region"):
            _refuse(f"{where}: this server has no shared memory; send the tensor itself")
        arrays[name] = read_elements(entry, datatype, shape, where)
    return arrays


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
        if not is_count(extent) or extent > MAX_EXTENT:
            _refuse(f"{where}: {extent!r} in `shape` is no extent; give whole numbers from 0 on")
    if prod(filter(None, value)) > 2**62:
        _refuse(f"{where}: a tensor of shape {value} cannot be")
    return tuple(value)


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
    if not (is_count(named) and named < 1 << 64) and not (
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
    if not is_count(value) or value == 0:
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
