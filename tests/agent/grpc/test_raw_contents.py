"""Messages that are taken apart and put together, against protobuf's own reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from edgepart.agent.grpc.raw_contents import (
    MAX_HEAD_BYTES,
    MAX_PARTS,
    join_message,
    split_message,
    wrap_message,
)
from edgepart.planner.errors import RequestError

RAW = 7
buffers = st.lists(st.binary(max_size=300), max_size=5)


@given(st.text(max_size=20), st.text(max_size=20), buffers)
def test_the_tensors_come_apart_from_the_rest(model: str, name: str, raw: list[bytes]) -> None:
    message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=raw)
    message.inputs.add(name=name, datatype="FP32", shape=[2, 2**40, -1])
    message.parameters["k"].int64_param = -7
    head, values = split_message(message.SerializeToString(), RAW)
    assert [bytes(value) for value in values] == raw
    del message.raw_input_contents[:]
    assert service_pb2.ModelInferRequest.FromString(head) == message


@given(st.text(max_size=20), buffers)
def test_put_together_they_are_protobufs_message(model: str, raw: list[bytes]) -> None:
    head = service_pb2.ModelInferResponse(model_name=model).SerializeToString()
    pieces = join_message(head, 6, [memoryview(one) for one in raw])
    found = service_pb2.ModelInferResponse.FromString(b"".join(pieces))
    assert found == service_pb2.ModelInferResponse(model_name=model, raw_output_contents=raw)
    outer = service_pb2.ModelStreamInferResponse.FromString(b"".join(wrap_message(2, pieces)))
    assert outer.infer_response == found


@given(st.binary(max_size=60))
def test_random_bytes_are_split_or_refused(data: bytes) -> None:
    try:
        head, values = split_message(data, RAW)
    except RequestError:
        return
    assert len(head) + sum(map(len, values)) <= len(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x3a\x05abcd", "ends 1 bytes after"),
        (b"\x3a" + b"\xff" * 9 + b"\x01", "after it"),
        (b"\x08" + b"\xff" * 10, "begins no number"),
        (b"\x08", "begins no number"),
        (b"\x0b", "begins no field"),
        (b"\x0d\0\0\0", "ends 1 bytes after"),
        (b"\x3a\x00" * (MAX_PARTS + 1), f"over {MAX_PARTS}"),
        (b"\x0a" + b"\x81\x80\x80\x08" + bytes(MAX_HEAD_BYTES + 1), "beside raw tensors"),
    ],
)
def test_what_is_damaged_or_too_much_is_named(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        split_message(data, RAW)


def test_tensors_are_views_of_the_message() -> None:
    data = service_pb2.ModelInferRequest(raw_input_contents=[b"abc"]).SerializeToString()
    (value,) = split_message(data, RAW)[1]
    assert value.obj is data
