"""Fuzz targets for gRPC clients: messages of inference requests, as bytes and as fields. What lies below (HTTP/2, the
lengths of messages) is read by the library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from edgepart.agent.gateway import oip_models
from edgepart.agent.gateway.oip import InferRequest
from edgepart.agent.gateway.oip_elements import binary_of, datatype_of_array, texts_of
from edgepart.agent.grpc.infer_messages import TYPED_FIELDS, build_answer, read_message, read_tensors
from edgepart.agent.grpc.messages import CLASSES, RAW_INPUTS
from edgepart.agent.grpc.raw_contents import join_message
from edgepart.planner.errors import RequestError
from tests.fuzz.doors.http import ARRAYS, CARD
from tests.fuzz.forms import Headed, Json, headed, parted, parts
from tests.fuzz.target import Target, expect, plainly

STATEFUL = replace(CARD, states=("kept",))


def _seed(names: str, *, raw: bool) -> tuple[Any, list[bytes | memoryview]]:
    """A request with the inputs of these names, raw or typed, and its raw contents."""
    message = CLASSES["ModelInferRequest"](model_name="net", model_version="1", id="q")
    message.parameters["timeout"].int64_param = 5_000_000
    message.parameters["sequence_id"].string_param = "s"
    message.parameters["sequence_start"].bool_param = True
    message.outputs.add(name="y").parameters["classification"].int64_param = 0
    values = []
    for name in names:
        array = ARRAYS[name]
        datatype = str(datatype_of_array(array.dtype))
        tensor = message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if raw:
            values.append(binary_of(array, datatype))
        else:
            elements = texts_of(array) if datatype == "BYTES" else array.ravel().tolist()
            getattr(tensor.contents, TYPED_FIELDS[datatype]).extend(elements)
    return message, values


SEEDS = [_seed("xt", raw=True), _seed("xt", raw=False), _seed("xtibhu", raw=True), _seed("xtibu", raw=False)]


def _bytes_of(message: Any, values: Sequence[bytes | memoryview]) -> bytes:
    return b"".join(join_message(message.SerializeToString(), RAW_INPUTS, values))


def _again(asked: InferRequest) -> None:
    """Check that the inputs, sent back as outputs, are the same when they are read as a request's."""
    everything = InferRequest(asked.id, asked.inputs, None, binary_output=True, timeout_s=None)
    answer = b"".join(build_answer("net", everything, asked.inputs, {"epoch": "1.1"}, version="1"))
    response = CLASSES["ModelInferResponse"].FromString(answer)
    expect([output.name for output in response.outputs] == list(asked.inputs), "outputs are not the inputs")
    message = CLASSES["ModelInferRequest"](inputs=response.outputs)
    values = [binary_of(array, str(datatype_of_array(array.dtype))) for array in asked.inputs.values()]
    again = read_tensors(read_message(_bytes_of(message, values)))
    for name, array in asked.inputs.items():
        same = again.inputs[name].shape == array.shape and again.inputs[name].dtype == array.dtype
        expect(same, f"{name!r} has another form after a round trip")
        equal = again.inputs[name].tobytes() == array.tobytes() or array.dtype == object
        expect(equal, f"{name!r} is another array after a round trip")


def _request(data: bytes) -> None:
    message = read_message(data)
    expect(message.is_quick in (True, False), "unreachable")
    expect(
        message.sequence is None or message.sequence[0] == message.model, "the sequence is another model's"
    )
    asked: Any = read_tensors(message)
    _again(asked)
    oip_models.check_fit(STATEFUL, asked)
    build_answer("net", asked, {"y": np.ones((1, 2), np.float32)}, {"epoch": "1.1"}, version="1")


def _fields(data: bytes) -> None:
    """Take the message whose fields a JSON document has, and whose raw contents follow it."""
    head, rest = parted(data)
    try:
        document = json.loads(head)
        json.dumps(document, ensure_ascii=False).encode()  # Half a surrogate pair is no text.
        message = ParseDict(document, CLASSES["ModelInferRequest"](), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"no client can make such a message: {error}") from None
    _request(_bytes_of(message, parts(rest)))


def _field_seeds() -> list[bytes]:
    return [
        headed(
            json.dumps(MessageToDict(message, preserving_proto_field_name=True)).encode(),
            b"".join(headed(bytes(value)) for value in values),
        )
        for message, values in SEEDS
    ]


TARGETS = (
    Target(
        "gRPC: bytes",
        lambda: [_bytes_of(message, values) for message, values in SEEDS],
        plainly(_request),
        (RequestError,),
    ),
    Target("gRPC: fields", _field_seeds, plainly(_fields), (RequestError,), Headed(Json())),
)
