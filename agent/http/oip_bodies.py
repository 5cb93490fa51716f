"""OIP bodies: the Open Inference Protocol v2 in HTTP's bodies, which are JSON, followed by the tensors' bytes in the binary
tensor extension (Triton's extension_binary_data, adopted by KServe). Rules: no door.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from edgepart.agent.gateway import oip
from edgepart.agent.gateway.oip import Array, InferRequest
from edgepart.agent.gateway.oip_elements import (
    BINARY_ONLY,
    array_from_binary,
    array_from_json,
    binary_of,
    json_of,
)
from edgepart.agent.http.json_bodies import read_object
from edgepart.planner.errors import RequestError

LARGE = "send `data` flat, or tensors as binary data"
NOT_FINITE = "NaN and infinities go as binary data"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A request whose JSON has been read, but not its tensors."""

    document: Mapping[str, Any]
    binary: memoryview

    @property
    def is_quick(self) -> bool:
        """Whether reading the tensors takes almost no time."""
        return oip.is_quick(self.document, len(self.binary))


class _Elements:
    """Reads inputs' elements, either from their JSON or from the next of the binary data."""

    def __init__(self, binary: memoryview) -> None:
        self._binary = binary
        self.used = 0

    def __call__(self, entry: Mapping[str, Any], datatype: str, shape: tuple[int, ...], where: str) -> Array:
        size = entry.get("parameters", {}).get("binary_data_size")
        if (size is None) == ("data" not in entry):
            _refuse(f"{where}: give either `data` or `parameters.binary_data_size`")
        if size is None:
            if datatype in BINARY_ONLY:
                _refuse(f"{where}: the protocol has {datatype} in binary only; send binary_data_size")
            return array_from_json(entry["data"], datatype, shape, where)
        left = len(self._binary) - self.used
        if not oip.is_count(size) or size > left:
            _refuse(f"{where}: binary_data_size is {size!r}, but {left} bytes are left")
        begin, self.used = self.used, self.used + size
        return array_from_binary(self._binary[begin : self.used], datatype, shape, where)


def read_envelope(body: bytes | bytearray | memoryview, header_length: int | None) -> Envelope:
    """Read a request's JSON. `header_length` is the Inference-Header-Content-Length, at which the JSON ends and the binary
    data begins. Raises RequestError."""
    view = memoryview(body)
    if header_length is not None and not 0 <= header_length <= len(view):
        _refuse(f"Inference-Header-Content-Length is {header_length}, but the body has {len(view)} bytes")
    split = len(view) if header_length is None else header_length
    return Envelope(read_object(view[:split], LARGE, NOT_FINITE), view[split:])


def read_tensors(envelope: Envelope) -> InferRequest:
    """Read the tensors. Raises RequestError."""
    elements = _Elements(envelope.binary)
    request = oip.read_document(envelope.document, elements)
    if more := len(envelope.binary) - elements.used:
        _refuse(f"{more} bytes follow the last input's binary data; send what is announced")
    return request


def read_request(body: bytes | bytearray | memoryview, header_length: int | None) -> InferRequest:
    """Read the JSON and the tensors of a request. Raises RequestError."""
    return read_tensors(read_envelope(body, header_length))


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
    for name, datatype, array in oip.answer_tensors(request, outputs):
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


def _refuse(message: str) -> NoReturn:
    raise RequestError(message)
