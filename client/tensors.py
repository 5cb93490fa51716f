"""Tensors: numpy arrays as the binary form of the Open Inference Protocol, and back. Rules over numpy: no door."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgepart.agent.gateway.oip_elements import (
    array_from_binary,
    array_from_json,
    binary_of,
    datatype_of_array,
)
from edgepart.agent.http.buffers import Buffer, pad_head
from edgepart.planner.errors import InternalError, RequestError
from edgepart.planner.region import Array


def request_body(
    inputs: Mapping[str, Array], outputs: Sequence[str] | None
) -> Callable[[float], Sequence[Buffer]]:
    """What makes a request's body for the seconds that the request may still take: the JSON part, then the bytes of the
    arrays, which are not copied if they are contiguous. Raises RequestError for arrays that the protocol has no datatype
    for."""
    entries = []
    buffers: list[Buffer] = []
    for name, given in inputs.items():
        array = np.asarray(given)
        datatype = datatype_of_array(array.dtype)
        if datatype is None:
            raise RequestError(f"input {name!r}: the protocol has no datatype for numpy's {array.dtype}")
        data = binary_of(array, datatype)
        size = {"binary_data_size": len(data)}
        entries.append({"name": name, "datatype": datatype, "shape": list(array.shape), "parameters": size})
        buffers.append(data)
    document: dict[str, Any] = {"inputs": entries}
    if outputs:
        document["outputs"] = [{"name": name} for name in outputs]

    def body(left_s: float) -> Sequence[Buffer]:
        asked = {"binary_data_output": True, "timeout": max(1, round(left_s * 1e6))}
        return [pad_head(json.dumps({"parameters": asked, **document}).encode()), *buffers]

    return body


def read_answer(data: bytes, head_length: str | None) -> tuple[dict[str, Any], dict[str, Array]]:
    """The answer's JSON and its arrays. `head_length` is the length of the JSON, or None if there is nothing else."""
    split = len(data) if head_length is None else int(head_length)
    document = json.loads(data[:split])
    rest = memoryview(data)[split:]
    arrays: dict[str, Array] = {}
    for entry in document.get("outputs", ()):
        name, datatype, shape = entry["name"], entry["datatype"], tuple(entry["shape"])
        if "data" in entry:
            arrays[name] = array_from_json(entry["data"], datatype, shape, f"output {name!r}")
            continue
        size = int(entry["parameters"]["binary_data_size"])
        arrays[name] = array_from_binary(rest[:size], datatype, shape, f"output {name!r}")
        rest = rest[size:]
    if len(rest):
        raise InternalError(f"the agent's answer has {len(rest)} bytes too many")
    return document, arrays
